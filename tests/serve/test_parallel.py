"""A server of several requests at once: its places, those that wait, and its counts."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spac.engine import Engine
from spac.engine.batch_recording import StepMeter
from spac.llama_cpp_python.generation import plain_setting
from spac.serve.metrics import Metrics
from spac.serve.request_queue import RequestQueue
from spac.stats import Meter, RunStats
from tests.cli.conftest import ONE_THREAD
from tests.serve.conftest import Server, wait_until

TEXTS = ["def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def", "1, 2, 3,", "Once"]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Yield a server of three requests at once and four that wait."""
    options = ["--parallel", "3", "--queue", "4", "--ctx", "2304", "--temp", "0"]
    with Server(tmp_path_factory.mktemp("several"), *options) as server:
        yield server


def stream(server: Server, text: str) -> str:
    chunks = server.client().completions.create(model="demo", prompt=text, max_tokens=20, stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


@pytest.mark.parametrize(("options", "places", "said"), [
    ((), 4, ""),
    (("--ctx", "1024"), 2, "2 generations at once, for --ctx 1024"),
    (("--deterministic",), 1, "one generation at a time, for --deterministic would give each a part"),
    (("--parallel", "1"), 1, ""),
])  # fmt: skip
def test_a_server_that_is_not_told_makes_four_answers_at_once(tmp_path, options, places, said):
    """A note says so if there are fewer."""
    with Server(tmp_path, "--ctx", "4096", *options, fixed=(*ONE_THREAD, "--temp", "0")) as server:
        assert server.get("/props")["total_slots"] == places
        assert said in server.err
        assert bool(said) == ("at once, for" in server.err or "at a time, for" in server.err)
        with ThreadPoolExecutor(5) as pool:
            assert all(pool.map(lambda text: stream(server, text), TEXTS[:5]))


def test_three_run_and_four_wait(several):
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
        wait_until(lambda: several.metric("spac_queue_length") == 4)
        status, body = several.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        done.set()
        assert [each.result(60) for each in waiting] == [200] * 4
        for each in holding:
            each.result(60)
    wait_until(lambda: several.metric("spac_running") == 0)


def test_the_engines_counts_are_counted_once():
    setting = plain_setting("any.gguf", "cpu", 1, 64, 0, 0.0)
    meter = Meter(steps=10, step_tokens=18, verify_s=0.6, generated_tokens=18)
    steps = StepMeter()
    steps.meter = meter

    class Serving:
        batch_stats = property(lambda _self: RunStats.of(setting, meter))

        def __init__(self) -> None:
            self.steps = steps

    metrics = Metrics(RequestQueue(4), cast(Engine, Serving()))

    def values() -> list[float]:
        families = text_string_to_metric_families(metrics.text().decode())
        found = {(each.name, *each.labels.values()): each.value for one in families for each in one.samples}
        return [found[name] for name in (
            ("spac_steps_total",), ("spac_seconds_total", "verify"), ("spac_tokens_total", "generated"),
        )]  # fmt: skip

    for _ in range(2):
        assert values() == [10, 0.6, 18]
    meter.steps += 2
    assert values() == [12, 0.6, 18]
