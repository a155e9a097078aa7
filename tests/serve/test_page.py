"""The parts of the page that need no browser: files, keys, the live feed."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
import tracemalloc
from contextlib import aclosing, closing
from types import SimpleNamespace

import numpy as np
import pytest

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.serve.page import FILES, live
from spac.serve.page.live import LiveFeed
from spac.stats import RunStats
from tests.cli.conftest import ONE_THREAD
from tests.serve.conftest import KEY, Server, tokens_on_page


@pytest.mark.parametrize("path", FILES)
def test_files_need_no_key_and_have_a_strict_policy(server, path):
    with closing(server.connection()) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
    policy = response.headers["content-security-policy"]
    assert response.status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "://" not in text.replace("http://www.w3.org/", ""), "no other address is named"
    assert " on" not in re.findall(r"<[^>]*\son\w+=", text), "no inline handlers"


def test_what_uses_the_server_needs_the_key(server):
    for method, path in (("POST", "/page/markdown"), ("POST", "/page/pdf"), ("GET", "/page/events")):
        assert server.ask(method, path, "", key="wrong")[0] == 401
    assert server.ask("GET", "/page/nope")[0] == 404


def test_markdown_over_the_wire(server, tiny_model, tmp_path):
    def drawn(server, text):
        status, body = server.ask("POST", "/page/markdown", text)
        assert status == 200
        return json.loads(body)["html"]

    assert "<p><em>so</em></p>\n" in drawn(server, "*so*")
    model = tiny_model("qwen3moe", n_vocab=288)  # has no chat template
    with Server(tmp_path, "--target", str(model), "--ctx", "256", fixed=ONE_THREAD) as plain:
        assert "<pre>*so*\n    a&lt;b</pre>" in drawn(plain, "*so*\n    a<b")
    for wrong, status in ((b"\xff", 400), (b"x" * ((1 << 20) + 1), 413)):
        assert server.ask("POST", "/page/markdown", wrong)[0] == status


def test_without_a_page(tmp_path):
    with Server(tmp_path, "--no-page", "--ctx", "256") as server:
        assert {server.ask("GET", path)[0] for path in (*FILES, "/page/events")} == {404}
        assert "a page to chat" not in server.err


def test_a_page_of_another_machine_is_its_own_at_an_ip_address():
    from spac.serve.state import _is_own

    assert _is_own("http://192.168.1.5:8000", "192.168.1.5:8000")
    assert _is_own("http://[fe80::1]:8000", "[fe80::1]:8000")
    assert not _is_own("http://192.168.1.5:8000", "192.168.1.6:8000")
    assert not _is_own("http://evil.example:8000", "evil.example:8000"), "a name can be led anywhere"


def test_a_stop_ends_streams_to_watchers(tmp_path):
    server = Server(tmp_path, "--ctx", "256")
    connection = http.client.HTTPConnection(server.address, timeout=30)
    connection.request("GET", "/page/events", headers={"authorization": f"Bearer {KEY}"})
    assert connection.getresponse().readline().startswith(b"event: about")
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 3
    connection.close()


# The live feed, in this process


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(
        demo.TARGET, demo.DRAFT, draft_length=4, threads=1, ctx=512, device="simulated",
        sampling=SamplingConfig(temp=0),
    )  # fmt: skip
    with Engine(config) as engine:
        yield engine


def generated(engine: Engine, feed: LiveFeed, n: int) -> object:
    feed.begin()
    generation = engine.generate("def add(", n)
    for _ in generation:
        pass
    feed.end()
    return generation.stats


def test_nothing_is_done_without_a_watcher(engine, monkeypatch):
    feed, listeners = LiveFeed(engine), engine.events.after_step
    for name in ("_observe", "_hand_over", "_look", "_publish"):
        monkeypatch.setattr(feed, name, lambda *_: pytest.fail("it was called"))
    tracemalloc.start()
    try:
        generated(engine, feed, 30)
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, live.__file__)])
    finally:
        tracemalloc.stop()
    assert engine.events.after_step is listeners
    assert sum(statistic.size for statistic in found.statistics("filename")) == 0


def test_a_watcher_sees_consistent_numbers(engine):
    feed, listeners = LiveFeed(engine), list(engine.events.after_step)
    shown: list[dict] = []

    async def watch() -> RunStats:
        async with aclosing(feed.watch()) as events:
            about = json.loads((await anext(events))["data"])
            n_slots = engine.experts.slots.n_slots
            assert about == {
                "devices": [], "experts": [32] * 5, "slots": n_slots, "drafts": True, "several": False
            }  # fmt: skip
            shown.append(json.loads((await anext(events))["data"]))
            assert len(engine.events.after_step) == len(listeners) + 1
            running = asyncio.create_task(asyncio.to_thread(generated, engine, feed, 120))
            while shown[-1]["phase"] != "idle" or not running.done():
                shown.append(json.loads((await asyncio.wait_for(anext(events), 30))["data"]))
                await asyncio.sleep(0)
            return await running

    began = time.monotonic()
    stats = asyncio.run(watch())
    took = time.monotonic() - began
    assert engine.events.after_step == listeners
    assert [each["phase"] for each in shown][:2] == ["idle", "prompt"]
    assert sum(each["phase"] == "decoding" for each in shown) <= took * live.RATE + 1
    total = {name: sum(each[name] for each in shown) for name in shown[0] if name not in ("phase", "experts")}
    counts = {"steps": stats.steps, "drafted": stats.drafted_tokens, "accepted": stats.accepted_tokens,
              "activations": stats.activations, "tokens": stats.steps + stats.accepted_tokens,
              "hits": round(stats.hit_rate * stats.activations)}  # fmt: skip
    assert {name: total[name] for name in counts} == counts
    assert total["seconds"] == pytest.approx(stats.decode_s, rel=0.3)


def test_flags_of_experts():
    feed = LiveFeed(None)
    first, second = np.array([[0, -1, -1]], np.int32), np.array([[-1, 0, -1]], np.int32)
    used = np.array([[True, False, True]])
    assert feed._flags(first, None).tolist() == [[live.RESIDENT, 0, 0]]
    assert feed._flags(second, used).tolist() == [
        [live.USED | live.MOVED, live.RESIDENT | live.MOVED, live.USED]
    ]
    assert feed._flags(second, None).tolist() == [[live.USED, live.RESIDENT, live.USED]]


def test_many_steps_make_few_snapshots():
    now, sent = [100.0], []
    times = dict.fromkeys(("draft_ns", "verify_ns", "sample_ns"), 1)
    step = SimpleNamespace(
        n_accepted=2, n_drafted=4, tokens=range(3), layer_costs=(), demand=np.zeros(1), **times
    )
    feed = LiveFeed(None, lambda: now[0])
    feed._hand_over = lambda *_: sent.append(now[0])
    for _ in range(1000):
        now[0] += 0.001
        feed._observe(step)
    assert len(sent) == live.RATE
    assert (feed._sums.steps, feed._sums.tokens, feed._sums.accepted) == (1000, 3000, 2000)


def test_a_server_streams_what_its_engine_does(server):
    asked = {"prompt": "d", "max_tokens": 60, "logit_bias": {"0": -100}}
    tokens = tokens_on_page(server, lambda: server.post("/v1/completions", asked))
    assert 59 <= tokens <= 60, "the first one may come with the prompt"
