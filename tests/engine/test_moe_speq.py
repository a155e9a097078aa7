"""MoE-SpeQ's scheduler runs on a real pair: the bundled target, and a 4-bit copy of it as the draft."""

from __future__ import annotations

from threading import get_ident

import numpy as np
import pytest

from spac.demo import PROMPT, TARGET
from spac.engine import Engine
from spac.papers.moe_speq import MoeSpeqScheduler
from spac.run import main
from spac.scheduler import Event, Plan, View
from spac.stats.recording import Recorder
from tests.engine.conftest import config
from tests.papers.fidelity import Fidelity
from tools.self_draft import quantize

N_EXPERT, N_USED = 32, 4


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return quantize(TARGET, tmp_path_factory.mktemp("draft") / "target-Q4_0.gguf")


def run(draft, scheduler, recorder=None):
    options = {"draft_length": 6, "slots": "25%", "scheduler": scheduler, "deterministic": True}
    with Engine(config(draft=draft, **options)) as engine:
        generation = engine.generate(PROMPT, 60, recorder=recorder)
        return "".join(generation), generation.stats


@pytest.fixture(scope="module")
def recorded(draft):
    text, stats = run(draft, "moe-speq", recorder := Recorder())
    return text, stats, recorder.demand


def test_the_text_is_what_it_is_without_residents(draft, recorded):
    text, stats, _ = recorded
    again, unrecorded = run(draft, "moe-speq")
    plain, without = run(draft, "none")
    assert text == again == plain
    assert stats.hit_rate == unrecorded.hit_rate
    assert stats.hit_rate_distinct == unrecorded.hit_rate_distinct
    assert without.hit_rate in (None, 0.0)
    assert stats.hit_rate > 0.4
    assert stats.acceptance == without.acceptance > 0.4


def test_a_quantized_copy_foretells_the_targets_routes(recorded):
    _, _, demand = recorded
    assert demand.draft_routes is not None
    fidelity = Fidelity.of(demand.draft_routes, demand.routes)
    assert fidelity.tokens == int((demand.verified - 1).sum())
    assert fidelity.same.min() > 0.8, f"{N_USED / N_EXPERT} would be chance"
    assert fidelity.precision.min() > 0.85
    shifted = Fidelity.of(demand.draft_routes[:, :, 1:], demand.routes)
    assert shifted.same.max() < 0.5, "those of another token"


def test_what_is_predicted_is_hit(draft, recorded):
    """Plans are carried out before the verification. Hits exceed those of history, and are near the most that
    fit."""
    _, stats, demand = recorded
    others = {name: run(draft, name)[1] for name in ("lru", "ewma")}
    for other in others.values():
        assert stats.hit_rate > other.hit_rate + 0.05
        assert stats.hit_rate_distinct > other.hit_rate_distinct + 0.05
    wanted = np.count_nonzero(demand.counts, axis=(1, 2))
    most = np.minimum(wanted, 40).sum() / wanted.sum()
    assert stats.hit_rate_distinct > 0.9 * most


def test_a_dense_draft_is_refused_in_one_line(capsys):
    assert main(["--scheduler", "moe-speq", "--device", "simulated", "-n", "4", "-p", "x"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1
    assert "draft.gguf has no experts" in said[0]
    assert "llama-quantize" in said[0]


class Followed(MoeSpeqScheduler):
    """Notes the threads on which drafts are followed, and what is predicted of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[tuple[Event, int]] = set()
        self.most_misses = 0

    def on(self, event: Event, view: View) -> Plan | None:
        self.threads.add((event, get_ident()))
        plan = super().on(event, view)
        if self.window_misses is not None:  # None in a step whose draft's end came too late to be followed
            self.most_misses = max(self.most_misses, int(self.window_misses.max()))
        return plan


@pytest.mark.parametrize(("draft_type", "records"), [("draft-simple", False), ("self", True)])
def test_drafts_are_followed_beside_the_decoding_thread(draft, recorded, draft_type, records):
    """A recorder sees every draft, also those that the thread leaves out."""
    subject = Followed()
    options = {"draft_type": draft_type, "draft_length": 6, "slots": "25%", "scheduler": subject}
    with Engine(config(draft=draft if draft_type == "draft-simple" else None, **options)) as engine:
        recorder = Recorder() if records else None
        assert "".join(engine.generate(PROMPT, 60, recorder=recorder)) == recorded[0]
    by_event = dict(subject.threads)
    assert len(subject.threads) == len(by_event), "each event has one thread"
    assert by_event[Event.VERIFY_END] != by_event[Event.DRAFT_END]
    if recorder is not None:
        assert recorder.demand.draft_routes is not None
    assert subject.most_misses > 0
