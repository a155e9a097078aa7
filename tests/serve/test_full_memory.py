"""`spac serve`: where the memory of all places is full, one answer ends, and no other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spac._core import LoopResponse
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions
from spac.errors import OutOfMemoryError
from tests.exact import PROMPTS
from tests.serve.test_loop import DRAFTS, config

CTX = 256
N = 80
FULL = "share the context, and it is full: raise --ctx, or lower --parallel"


def long_prompt(n_lines: int) -> str:
    """Return a prompt of about 7 tokens a line."""
    return "The little girl ran back home.\n" * n_lines


def asked(engine: Engine, prompt: str, **options: object) -> LoopResponse:
    body = {"prompt": prompt, "n_predict": N, "ignore_eos": True, **options}
    return engine.loop.begin("completion", json.dumps(body).encode())


def said(answer: LoopResponse) -> tuple[dict, str]:
    """Return the last part of an answer, and its text."""
    answer.run()
    parts = [answer.body]
    if answer.is_stream:
        lines = b"".join(iter(answer.next, None)).splitlines()
        parts = [line.partition(b": ")[2] for line in lines if line]
    answer.close()
    read = [json.loads(part) for part in parts]
    return read[-1], "".join(each.get("content", "") for each in read)


@pytest.mark.parametrize("draft", ["none", "simple"])
def test_one_answer_ends_and_the_others_go_on(draft):
    with Engine(replace(config(**DRAFTS[draft]), ctx=CTX), serves=LoopOptions("demo")) as engine:
        prompts = [*PROMPTS, long_prompt(8), long_prompt(9)]
        alone = {prompt: said(asked(engine, prompt))[1] for prompt in prompts}
        n_whole = n_cut = 0
        for stream in (False, True):
            jobs = [asked(engine, each, stream=stream) for each in prompts]
            with ThreadPoolExecutor(4) as pool:
                for prompt, (last, text) in zip(prompts, pool.map(said, jobs), strict=True):
                    if "error" in last:
                        assert FULL in last["error"]["message"]
                        assert (last["error"]["code"], text) == (503, "")
                    elif last["truncated"]:
                        assert last["stop_type"] == "limit"
                        assert 0 < last["tokens_predicted"] < N
                        assert alone[prompt].startswith(text)
                        n_cut += 1
                    else:
                        assert text == alone[prompt]
                        n_whole += 1
        assert (n_whole > 0, n_cut > 0) == (True, True)
        assert said(asked(engine, prompts[0]))[1] == alone[prompts[0]]


@pytest.mark.parametrize("draft", ["none", "simple"])
def test_a_prompt_that_does_not_fit_beside_an_answer_is_refused(draft):
    with Engine(replace(config(**DRAFTS[draft]), ctx=CTX), serves=LoopOptions("demo")) as engine:
        prompt, other = long_prompt(15), "\n" + long_prompt(30)
        expected, text = (said(asked(engine, each))[1] for each in (prompt, other))
        for n in (1, 2):
            first = asked(engine, prompt, stream=True)
            first.run()
            begun = first.next()
            error = said(asked(engine, other, n=n))[0]["error"]
            assert (error["code"], error["type"]) == (503, "unavailable_error")
            assert FULL in error["message"]
            lines = (begun + b"".join(iter(first.next, None))).splitlines()
            first.close()
            parts = [json.loads(line.partition(b": ")[2]) for line in lines if line]
            assert "".join(each["content"] for each in parts) == expected
        assert said(asked(engine, other))[1] == text


def test_a_text_of_this_process_that_does_not_fit_beside_another_says_so():
    with Engine(replace(config(), ctx=CTX)) as engine:
        prompt, other = long_prompt(15), "\n" + long_prompt(30)
        expected, text = ("".join(engine.generate(each, N)) for each in (prompt, other))
        first = engine.generate(prompt, N)
        begun = next(first)
        with pytest.raises(OutOfMemoryError, match=FULL):
            "".join(engine.generate(other, N))
        assert begun + "".join(first) == expected
        assert "".join(engine.generate(other, N)) == text
