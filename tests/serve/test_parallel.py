"""A server of several requests at once. It is deterministic, so each answer is the one it has alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spac.engine.batch_recording import StepMeter
from spac.engine.prompt_progress import PromptProgress
from spac.llama_cpp_python.generation import TokenRun, plain_setting
from spac.serve.metrics import Metrics
from spac.serve.request_context import RequestContext
from spac.serve.request_queue import RequestQueue
from spac.serve.state import ServerState
from spac.stats import Meter, RunStats
from tests.cli.conftest import ONE_THREAD
from tests.serve.conftest import KEY, Server, wait_until

TEXTS = ["def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def", "1, 2, 3,", "Once"]
LONG = 400  # tokens, so that answers overlap however late their requests come
BODIES = [{"prompt": text, "max_tokens": LONG, "logit_bias": {"0": -100}} for text in TEXTS[:3]]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of three requests at once and four that wait."""
    options = ["--parallel", "3", "--queue", "4", "--ctx", "2304", "--temp", "0", "--deterministic"]
    server = Server(tmp_path_factory.mktemp("several"), *options)
    yield server
    assert server.stop() == 0


def completion(server: Server, text: str) -> str:
    made = server.client().completions.create(model="demo", prompt=text, max_tokens=20, logprobs=2)
    assert made.choices[0].logprobs is not None
    assert len(made.choices[0].logprobs.token_logprobs or ()) == 20
    return made.choices[0].text


def stream(server: Server, text: str) -> str:
    chunks = server.client().completions.create(model="demo", prompt=text, max_tokens=20, stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def chat(server: Server, text: str) -> str:
    made = server.client().chat.completions.create(
        model="demo", messages=[{"role": "user", "content": text}], max_tokens=20
    )
    return made.choices[0].message.content or ""


def message(server: Server, text: str) -> str:
    made = server.anthropic().messages.create(
        model="demo", messages=[{"role": "user", "content": text}], max_tokens=20
    )
    return "".join(getattr(block, "text", "") for block in made.content)


@pytest.mark.parametrize("ask", [completion, stream, chat, message])
def test_answers_at_the_same_time_are_those_alone(several: Server, ask: Callable[[Server, str], str]) -> None:
    alone = [ask(several, text) for text in TEXTS]
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        assert list(pool.map(lambda text: ask(several, text), TEXTS)) == alone


@pytest.mark.parametrize(("options", "places", "said"), [
    ((), 4, ""),
    (("--ctx", "1024"), 2, "2 generations at once, for --ctx 1024"),
    (("--deterministic",), 1, "one generation at a time, for --deterministic would give each a part"),
    (("--parallel", "1"), 1, ""),
])  # fmt: skip
def test_a_server_that_is_not_told_makes_four_answers_at_once(
    tmp_path: Path, options: Sequence[str], places: int, said: str
) -> None:
    """A note says so if there are fewer."""
    server = Server(tmp_path, "--ctx", "4096", *options, fixed=(*ONE_THREAD, "--temp", "0"))
    try:
        assert json.loads(server.ask("GET", "/props")[1])["total_slots"] == places
        assert said in server.err
        assert bool(said) == ("at once, for" in server.err or "at a time, for" in server.err)
        with ThreadPoolExecutor(5) as pool:
            assert all(pool.map(lambda text: stream(server, text), TEXTS[:5]))
    finally:
        assert server.stop() == 0


def test_three_run_and_four_wait(several: Server) -> None:
    """Streams that never end take the places. Their clients leave at the end."""
    running, done = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        endless: dict[str, Any] = {"ignore_eos": True, "grammar": 'root ::= "a "*'}
        chunks = several.client().completions.create(
            model="demo", prompt="x", max_tokens=700, stream=True, extra_body=endless
        )
        next(iter(chunks))
        running.release()
        done.wait(30)
        chunks.close()

    def wait() -> int:
        return several.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0]

    with ThreadPoolExecutor(8) as pool:
        holding = [pool.submit(hold) for _ in range(3)]
        for _ in range(3):
            assert running.acquire(timeout=30)
        waiting = [pool.submit(wait) for _ in range(4)]
        health = {}
        wait_until(lambda: health.update(several.health()) or health["queue"] == 4 or health["running"] < 3)
        if health["running"] == 3:  # A stream may have ended on a slow machine.
            status, body = several.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
        done.set()
        assert [each.result(60) for each in waiting] == [200] * 4
        for each in holding:
            each.result(60)
    wait_until(lambda: several.health()["running"] == 0)


def test_the_prompt_with_most_tokens_left_is_shown() -> None:
    queue = RequestQueue(4)
    state = ServerState(queue, Metrics(queue), ("demo",), "")
    assert state.reading() is None
    for total in (100, 5000, 300):
        context = RequestContext({})
        reading = PromptProgress()
        reading.begin(total)
        reading.report(60, total)
        context.run = cast(TokenRun, SimpleNamespace(reading=reading))
        state.requests.add(context)
    state.requests.add(RequestContext({}))
    now = state.reading()
    assert now is not None
    assert now.total == 5000


def test_shared_steps_are_counted_once() -> None:
    setting = plain_setting("any.gguf", "cpu", 1, 64, 0, 0.0)
    answer = RunStats.of(setting, Meter(steps=9, verify_s=0.5, generated_tokens=9))
    steps = StepMeter()
    steps.meter = Meter(steps=10, step_tokens=18, verify_s=0.6)
    metrics = Metrics(RequestQueue(4))
    metrics.watch(steps, lambda: RunStats.of(setting, steps.meter), lambda: 2, lambda: 1)

    def values() -> list[float]:
        families = text_string_to_metric_families(metrics.text().decode())
        found = {(each.name, *each.labels.values()): each.value for one in families for each in one.samples}
        return [found[name] for name in (
            ("spac_steps_total",), ("spac_seconds_total", "verify"), ("spac_tokens_total", "generated"),
            ("spac_batch_step_tokens",),
        )]  # fmt: skip

    for _ in range(2):
        metrics.observe(answer)
    assert values() == [10, 0.6, 18, 1.8]
    steps.meter.steps += 2
    assert values() == [12, 0.6, 18, 1.5]


def test_the_page_and_the_metrics_show_the_batch(several: Server) -> None:
    """The counts of shared steps are counted once, though each of the answers had all of them."""
    names = ("drafted", "accepted", "generated")
    before = {name: several.metric("spac_tokens_total", kind=name) for name in names}
    steps = several.metric("spac_steps_total")
    connection = several.connection()
    connection.request("GET", "/page/events", headers={"authorization": f"Bearer {KEY}"})
    seen: list[dict[str, Any]] = []
    with connection.getresponse() as response, ThreadPoolExecutor(3) as pool:
        done = [pool.submit(several.ask, "POST", "/v1/completions", body) for body in BODIES]
        # All tokens are told before the phase is idle. No event follows it, so nothing else is waited for.
        while not seen or seen[-1]["phase"] != "idle" or sum(each["tokens"] for each in seen) < 3 * LONG:
            line = response.readline()
            if line.startswith(b'data: {"phase"'):
                seen.append(json.loads(line[6:]))
            elif b'"several"' in line:
                assert json.loads(line[6:])["several"] is True
        assert all(each.result() for each in done)
    connection.close()
    assert all(each["running"] == len(each["sequences"]) <= 3 for each in seen)
    most = max(seen, key=lambda each: each["running"])
    assert most["running"] > 1
    assert several.metric("spac_tokens_total", kind="generated") - before["generated"] == 3 * LONG
    assert 0 < several.metric("spac_steps_total") - steps < 3 * LONG
    assert several.metric("spac_batch_step_tokens") > 1
    # A generation leaves the batch after its client has the last token.
    for name in ("spac_batch_sequences", "spac_batch_sequences_waiting"):
        wait_until(lambda name=name: several.metric(name) == 0)
