"""A draft that the governor does not use leaves the device, and slots take its memory."""

from __future__ import annotations

import pytest

from spac import _core
from spac.config import SamplingConfig
from spac.engine import unused_draft
from spac.errors import InputError
from tests.engine.tight_pair import pair_starter, tight_limit, used

N_STEPS = 6


@pytest.fixture
def engine_with(tiny_model, monkeypatch):
    monkeypatch.setattr(unused_draft, "IDLE_STEPS", N_STEPS)

    yield pair_starter(tiny_model, latency_budget=1e-3)
    _core.set_memory_limit("simulated", 0)


def text_of(engine, n_tokens):
    return "".join(engine.generate("def f(", n_tokens))


@pytest.fixture
def tight(engine_with):
    """Return a limit under which not all experts fit beside the draft."""
    return tight_limit(engine_with)


def test_slots_take_the_memory_of_a_draft_that_is_not_used(engine_with, tight):
    with engine_with(draft=None, draft_max=None, latency_budget=None) as engine:
        wanted, more = text_of(engine, 30), text_of(engine, 5)
    with engine_with(vram_limit=tight) as engine:
        before, n_slots = used(), engine.experts.slots.n_slots
        assert n_slots < engine.n_experts
        draft_bytes = engine._pair.draft.n_bytes
        assert text_of(engine, 30) == wanted  # The draft leaves while this is generated.
        n_more = engine.experts.slots.n_slots - n_slots
        assert n_more > 0
        assert engine.notes[-1].endswith(f"hold {n_more} more experts from now on")
        assert engine.governor is None
        engine.set_slots(0)
        assert used() <= before - draft_bytes
        assert text_of(engine, 5) == more
        engine.fix_draft_length(None)
        with pytest.raises(InputError, match="there is no draft"):
            engine.fix_draft_length(2)
        assert engine.setting(SamplingConfig()).draft is None


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 4},
        {"vram_limit": 512 << 20},
        {"latency_budget": None, "draft_max": None, "draft_length": 2},
        {"draft_type": ("draft-simple", "ngram-simple")},
    ],
    ids=["the user's slots", "all experts fit", "a fixed length", "another type"],
)
def test_a_draft_stays(engine_with, tight, options):
    with engine_with(**{"vram_limit": tight, **options}) as engine:
        text_of(engine, 3 * N_STEPS)
        assert engine._pair.draft is not None


def test_a_draft_stays_until_it_was_idle_for_long(engine_with, tight):
    with engine_with(vram_limit=tight) as engine:
        text_of(engine, N_STEPS - 2)
        assert engine._pair.draft is not None
        engine.fix_draft_length(1)
        text_of(engine, 3 * N_STEPS)
        assert engine._pair.draft is not None
        engine.fix_draft_length(None)
        text_of(engine, N_STEPS + 2)
        assert engine._pair.draft is None


def test_a_session_drops_drafts_between_its_calls_only(engine_with, tight):
    with engine_with(vram_limit=tight) as engine:
        text_of(engine, 2)
        seen = []

        def drop(_event):
            with pytest.raises(InputError):
                engine.session.drop_drafts()
            seen.append(1)

        engine.events.after_step.append(drop)
        text_of(engine, 2)
        assert seen
        engine.session.drop_drafts()
        assert engine.session.draft_max == 0
        with pytest.raises(InputError):
            engine.session.set_draft_length(1)
