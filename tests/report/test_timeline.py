"""The timeline of a recording is valid, nested, and agrees with the counters."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

import spac.stats.spans
from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.report import main
from spac.report.timeline import TRACKS

TOLERANCE_US = 1e-3  # a nanosecond in the file's unit
PHASES = {"X", "M", "i", "b", "e"}


def config(**options):
    defaults = {"device": "simulated", "threads": 1, "ctx": 512, "draft_length": 4, "slots": 0.3}
    sampling = SamplingConfig(temp=0.0, seed=1)
    return EngineConfig(
        target=demo.TARGET, draft=demo.DRAFT, sampling=sampling, state="off", **{**defaults, **options}
    )


class Drawn:
    """A run's timeline, its statistics, and the counters of its engine."""

    def __init__(self, folder, **options):
        with Engine(config(**options)) as engine:
            before = dict(engine.experts.stats) if engine.experts is not None else {}
            with engine.record(folder / "run.npz"):
                generation = engine.generate(demo.PROMPT, 24)
                self.text = "".join(generation)
                if engine.experts is not None:
                    engine.experts.settle(10)
            after = dict(engine.experts.stats) if engine.experts is not None else {}
            self.counts = {name: after[name] - before[name] for name in after}
            self.stats = generation.stats
        assert main([str(folder / "run.npz"), "--timeline", str(folder / "run.json")]) == 0
        self.data = json.loads((folder / "run.json").read_text())
        self.events = self.data["traceEvents"]
        self.spans = [event for event in self.events if event["ph"] == "X"]

    def of(self, category):
        return [event for event in self.events if event.get("cat") == category]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return Drawn(tmp_path_factory.mktemp("timeline"))


def test_every_event_is_well_formed(drawn):
    assert set(drawn.data) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert drawn.data["otherData"]["dropped"] == 0
    for event in drawn.events:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["pid"] == 1
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert isinstance(event["args"], dict)
        assert ("dur" in event) == (event["ph"] == "X")
        assert event.get("dur", 0) >= 0


def test_the_tracks_have_names(drawn):
    names = {e["tid"]: e["args"]["name"] for e in drawn.events if e["name"] == "thread_name"}
    assert names == dict(enumerate((*TRACKS, "steps"), 1))
    assert {event["tid"] for event in drawn.spans} == set(names), "a track without any span"


def test_spans_of_a_track_nest_or_follow_each_other(drawn):
    tracks = defaultdict(list)
    for event in drawn.spans:
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_until = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start + TOLERANCE_US:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + TOLERANCE_US, "partly overlapping spans"
            open_until.append(end)


def test_what_the_counters_say_is_what_is_drawn(drawn):
    counts, stats = drawn.counts, drawn.stats
    assert len(drawn.of("verify")) == stats.steps
    assert sum(event["args"]["tokens"] for event in drawn.of("verify")) == stats.steps + stats.drafted_tokens
    assert sum(event["args"]["drafted"] for event in drawn.of("draft")) == stats.drafted_tokens
    assert sum(event["args"]["accepted"] for event in drawn.of("sample")) == stats.accepted_tokens
    assert sum(event["args"]["tokens"] for event in drawn.of("prefill")) == stats.prefilled_tokens
    assert len(drawn.of("layer")) == counts["blocks"]
    assert len(drawn.of("host_wait")) == counts["host_waits"] > 0
    assert len(drawn.of("evict")) == counts["evictions"]
    copies = [event["args"] for event in drawn.of("copy")]
    assert sum(args["bytes"] for args in copies if not args["failed"]) == counts["upload_bytes"] > 0
    assert sum(len(args["experts"]) for args in copies if not args["failed"]) == counts["uploads"]
    on_host = [event["args"]["activations"] for event in drawn.of("host_experts")]
    decoded = counts["activations"] - counts["activations_hit"]
    assert sum(on_host) >= decoded > 0  # the counter does not include the prompt
    lengths = [int(event["name"].removeprefix("k = ")) for event in drawn.of("steps")]
    assert (len(lengths), lengths[0]) == (stats.steps, 4)
    assert sum(lengths) >= stats.drafted_tokens
    timed = {"host_wait": "host_wait_ns", "host_experts": "host_compute_ns", "copy": "upload_ns"}
    for category, counter in timed.items():  # A span covers the time that its counter measures, and more.
        events = drawn.of(category)
        least_us = counts[counter] / 1e3 - len(events) * TOLERANCE_US
        assert sum(event["dur"] for event in events) >= least_us > 0
    asked = [event["name"] for event in drawn.of("scheduler")]
    assert asked == ["prompt"] + ["verify_end"] * stats.steps


def test_layers_lie_in_their_verification_or_prompt(drawn):
    passes = [
        (e["ts"] - TOLERANCE_US, e["ts"] + e["dur"] + TOLERANCE_US)
        for e in drawn.of("verify") + drawn.of("prefill")
    ]
    # Before this, the loop tries out the abilities of the contexts.
    begin = min(start for start, _ in passes)
    work = [e for name in ("layer", "host_wait", "host_experts") for e in drawn.of(name) if e["ts"] >= begin]
    assert len(work) > drawn.stats.steps
    for event in work:
        start, end = event["ts"], event["ts"] + event["dur"]
        assert any(first <= start and end <= last for first, last in passes)


def test_a_failed_copy_is_drawn_as_one(tmp_path):
    _core.set_simulated_device(fail_uploads=1)
    try:
        drawn = Drawn(tmp_path, scheduler="lru")
    finally:
        _core.set_simulated_device()
    failed = [event for event in drawn.of("copy") if event["args"]["failed"]]
    assert sum(len(event["args"]["experts"]) for event in failed) == drawn.counts["upload_failures"] > 0
    assert all("failed" in event["name"] for event in failed)


def test_a_slow_link_copies_one_expert_at_a_time(drawn, tmp_path):
    """So what a layer foresees waits for two experts at most. A fast link copies several in a batch."""
    _core.set_simulated_device(upload_gb_s=0.05)
    try:
        slow = Drawn(tmp_path)
    finally:
        _core.set_simulated_device()
    several = [event for event in slow.of("copy") if len(event["args"]["experts"]) > 1]
    assert len(several) <= 2, "batches before the first copy's time is known"
    assert len(slow.of("copy")) > 10
    assert any(len(event["args"]["experts"]) > 1 for event in drawn.of("copy"))


def test_a_streamed_prompt_shows_copies_beside_computing(tmp_path):
    """Two regions take turns. A region is filled after its last reader ends, and read when it is full."""
    _core.set_simulated_device(upload_gb_s=0.2)
    try:
        drawn = Drawn(tmp_path, stream_batch=16)
    finally:
        _core.set_simulated_device()
    fills = sorted(drawn.of("fill"), key=lambda event: event["ts"])
    assert sum(event["args"]["bytes"] for event in fills) == drawn.counts["stream_bytes"] > 0
    streamed = {event["args"]["layer"] for event in fills}
    first_step = min(event["ts"] for event in drawn.of("verify"))
    parts = sorted(
        (e for e in drawn.of("device_part") if e["args"]["layer"] in streamed and e["ts"] < first_step),
        key=lambda event: event["ts"],
    )
    assert [event["args"]["layer"] for event in parts] == [event["args"]["layer"] for event in fills]
    ends = [[event["ts"] + event["dur"] + TOLERANCE_US for event in events] for events in (fills, parts)]
    for i, (fill, part) in enumerate(zip(fills, parts, strict=True)):
        assert part["ts"] >= ends[0][i] - 2 * TOLERANCE_US
        assert i < 2 or fill["ts"] >= ends[1][i - 2] - 2 * TOLERANCE_US
    assert any(fill["ts"] < end for fill, end in zip(fills[1:], ends[1], strict=False)), "one after the other"


def test_plain_llama_cpp_has_a_timeline_too(tmp_path):
    drawn = Drawn(tmp_path, device="cpu", slots="auto")
    assert len(drawn.of("verify")) == drawn.stats.steps > 0
    assert {event["cat"] for event in drawn.spans} == {
        "prefill",
        "draft",
        "verify",
        "sample",
        "observe",
        "steps",
    }


def test_what_finds_no_room_is_counted_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(spac.stats.spans, "CAPACITY", 50)
    drawn = Drawn(tmp_path)
    dropped = drawn.data["otherData"]["dropped"]
    assert dropped > 0
    assert f"run.json: the last {dropped} spans are missing" in capsys.readouterr().err
    assert len(drawn.spans) <= 50
