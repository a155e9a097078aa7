"""Several threads use one `spac.Llama`: one call or stream runs at a time, and each answer is as if alone."""

from __future__ import annotations

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spac.errors import InputError
from spac.llama_cpp_python import call_lock
from spac.llama_cpp_python.call_lock import CallLock, Stream
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import DRAFT

PROMPTS = ["def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def"]
GREEDY: dict[str, Any] = {"temperature": 0.0}


def text_of(llm: Llama, prompt: str, *, stream: bool = False, n: int = 24) -> str:
    made = llm(prompt, max_tokens=n, stream=stream, **GREEDY)
    return "".join(each["choices"][0]["text"] for each in (made if stream else [made]))


@pytest.mark.parametrize(
    "options",
    [{"device": "cpu"}, {"device": "simulated", "draft": DRAFT, "draft_length": 3}],
    ids=["plain llama.cpp", "split with a draft"],
)
def test_answers_are_as_if_alone(opened, options):
    llm = opened(**options)
    alone = {prompt: text_of(llm, prompt) for prompt in PROMPTS}
    assert len(set(alone.values())) == len(PROMPTS)
    asked = [(prompt, i % 2 == 0) for i, prompt in enumerate(PROMPTS * 6)]
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda each: text_of(llm, each[0], stream=each[1]), asked))
    assert got == [alone[prompt] for prompt, _ in asked]


def test_chats_and_low_level_calls_wait_too(opened):
    llm = opened(device="simulated", chat_format="common")

    def chat(at: int) -> str:
        made = llm.create_chat_completion(
            [{"role": "user", "content": "hello"}], max_tokens=12, stream=at % 4 == 0, **GREEDY
        )
        if at % 4:
            return made["choices"][0]["message"]["content"]
        return "".join(each["choices"][0]["delta"].get("content") or "" for each in made)

    def low_level(_at: int) -> str:
        llm.reset()
        llm.eval(llm.tokenize(b"import os"))
        return "evaluated"

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda at: (chat, low_level)[at % 2](at), range(16)))
    assert got == [chat(1), "evaluated"] * 8


def test_a_call_waits_for_another_threads_stream(opened):
    llm = opened(device="simulated")
    alone = text_of(llm, PROMPTS[1])
    whole = text_of(llm, PROMPTS[0])
    stream = llm(PROMPTS[0], max_tokens=24, stream=True, **GREEDY)
    first = next(stream)["choices"][0]["text"]
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(text_of(llm, PROMPTS[1])))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert first + "".join(each["choices"][0]["text"] for each in stream) == whole
    thread.join()
    assert got == [alone]


def test_a_stream_may_be_read_by_several_threads(opened):
    """Servers read each item of a stream on whichever thread is free."""
    llm = opened(device="simulated")
    whole = text_of(llm, PROMPTS[0])
    stream = llm(PROMPTS[0], max_tokens=24, stream=True, **GREEDY)
    parts = []
    for _ in itertools.count():
        with ThreadPoolExecutor(1) as pool:
            part = pool.submit(next, stream, None).result()
        if part is None:
            break
        parts.append(part["choices"][0]["text"])
    assert "".join(parts) == whole


def test_a_dropped_stream_lets_others_go_on(opened):
    llm = opened(device="simulated")
    alone = text_of(llm, PROMPTS[1])
    stream = llm(PROMPTS[0], max_tokens=24, stream=True, **GREEDY)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(text_of, llm, PROMPTS[1])
        del stream
        gc.collect()
        assert waiting.result(60) == alone


def test_a_stream_that_nobody_reads_ends_for_others(opened, monkeypatch):
    monkeypatch.setattr(call_lock, "IDLE_S", 0.0)
    llm = opened(device="simulated")
    alone = text_of(llm, PROMPTS[1])
    stream = llm(PROMPTS[0], max_tokens=24, stream=True, **GREEDY)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(text_of, llm, PROMPTS[1]).result(60) == alone
    with pytest.raises(InputError, match="another thread waited for the model"):
        next(stream)
    assert next(stream, "over") == "over"
    assert text_of(llm, PROMPTS[1]) == alone


def test_streams_of_one_thread_take_turns():
    lock = CallLock()
    first, second = (Stream(lock, iter(range(3))) for _ in range(2))
    assert list(zip(first, second, strict=True)) == [(0, 0), (1, 1), (2, 2)]
    with lock.call(), lock.call():
        assert list(Stream(lock, iter("ab"))) == ["a", "b"]


def test_a_stream_passes_on_what_a_generator_does():
    seen: list[Any] = []

    def made() -> Any:
        try:
            while True:
                seen.append((yield len(seen)))
        except ValueError as error:
            yield str(error)
        finally:
            seen.append("closed")

    lock = CallLock()
    stream = Stream(lock, made())
    assert next(stream) == 0
    assert stream.send("sent") == 1
    assert stream.throw(ValueError("thrown")) == "thrown"
    stream.close()
    stream.close()
    assert seen == ["sent", "closed"]
    with pytest.raises(StopIteration):
        next(stream)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(list, Stream(lock, iter("a"))).result(60) == ["a"]
