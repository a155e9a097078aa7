"""Sequences that join, leave, step and are cancelled in any order say what they say alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac import _core
from spac.errors import Cancelled
from tests.session.lab import GREEDY, Lab, prompt
from tests.session.several import CONTEXT, alone, session

TEXTS = [prompt(n, n) for n in (3, 40, 90, 41, 150, 7)]
Actions = list[tuple[str, int]]
Do = dict[str, Callable[[int], object]]
Said = list[tuple[int, list[int]]]


def follow(several: _core.ParallelSession, actions: Actions, longest: int, other: Do) -> Said:
    """Join, leave, step and cancel as the actions say, and return what each prompt's sequences said.

    A step drafts up to `longest` tokens. `other` has what further actions do.
    """
    said: Said = []
    made: dict[int, list[int]] = {}
    present: list[int] = []
    cancelled = False
    for action, number in actions:
        if action == "join" and len(present) < several.n_sequences:
            present.append(several.join(TEXTS[number], **GREEDY))
            made[present[-1]] = []
            said.append((number, made[present[-1]]))
        elif action == "leave" and present:
            several.leave(present.pop(number % len(present)))
        elif action == "cancel":
            several.cancel()
            cancelled = True
        elif action == "step":
            turns = [(i, number % (longest + 1)) for i in present]
            if cancelled:
                cancelled = False
                with pytest.raises(Cancelled):
                    several.step(turns, 30)
                continue
            for each in several.step(turns, 30).sequences:
                each.check()
                made[each.id] += each.tokens.tolist()
        elif action in other:
            other[action](number)
    assert several.n_joined == len(present)
    return said


def compare(lab: Lab, path: Path, said: Said) -> None:
    """Check that each sequence said what it says alone. The longest answer to each prompt is made once."""
    kept: dict[Any, list[int]] = lab.__dict__.setdefault("kept", {})
    for number, tokens in said:
        key = (number, path)
        if len(kept.get(key, ())) < len(tokens):
            kept[key] = alone(lab, path, TEXTS[number], 2 * len(tokens))
        assert tokens == kept[key][: len(tokens)] if tokens else True


def actions(*kinds: str, least: int, most: int) -> st.SearchStrategy[Actions]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 5)), min_size=least, max_size=most)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions("join", "leave", "step", "step", "step", least=5, most=40))
def test_whoever_joins_and_leaves_each_says_what_it_says_alone(
    lab: Lab, target: Path, other: Path, actions: Actions
) -> None:
    """Three places share a memory of 256 tokens, which is often full. Every text is then compared."""
    with session(lab, target, draft=other, size={**CONTEXT, "n_ctx": 256}, draft_max=2) as several:
        said = follow(several, actions, 2, {})
    compare(lab, target, said)


def test_a_draft_without_room_drafts_for_the_oldest(lab: Lab, target: Path, other: Path) -> None:
    """The target shares a common beginning, so its memory of 256 tokens holds two texts of 150, and more.

    The draft's memory shares nothing, and holds one of them.
    """
    with session(lab, target, draft=other, size={**CONTEXT, "n_ctx": 256}, draft_max=2) as several:
        said = follow(several, [("join", 4), *[("step", 2)] * 6, ("join", 4), *[("step", 2)] * 6], 2, {})
        ids = [0, 1]
        step = several.step([(each, 2) for each in ids], 30)
        drafted = {each.id: each.n_drafted for each in step.sequences}
        assert (drafted[0] > 0, drafted[1]) == (True, 0)
        several.leave(0)
        assert several.step([(1, 2)], 30).sequences[0].n_drafted > 0, "there is room now"
    compare(lab, target, said)


def faults(lab: Lab, moe: Path, actions: Actions, separate: bool) -> int:
    """Follow actions among which slots move and copies fail. Return the number of copies that failed."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    shape = (experts.n_layer, experts.n_expert)
    if not experts.slots.n_slots:
        experts.attach_slots(shape[0] * shape[1] // 3)
    rng, before = np.random.default_rng(len(actions)), experts.stats["upload_failures"]
    do: Do = {
        "replan": lambda _: experts.submit(
            rng.integers(0, 100, shape).astype(np.int32), np.zeros(shape[0], np.int32)
        ),
        "fail": lambda number: _core.set_simulated_device(fail_uploads=number),
        "settle": lambda _: experts.settle(10),
    }
    with session(lab, moe, experts=experts, size={**CONTEXT, "n_ctx": 256}, separate=separate) as several:
        said = follow(several, actions, 0, do)
    _core.set_simulated_device()
    assert experts.settle(10)
    compare(lab, moe, said)
    return experts.stats["upload_failures"] - before


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions("join", "leave", "step", "step", "step", "cancel", "replan", "fail", least=8, most=30),
       st.booleans())  # fmt: skip
def test_cancelled_steps_and_copies_that_fail_change_no_text(
    lab: Lab, moe: Path, actions: Actions, separate: bool
) -> None:
    """Slots move between steps, some copies fail, and the memory of 256 tokens is often full."""
    faults(lab, moe, actions, separate)


def test_copies_do_fail(lab: Lab, moe: Path) -> None:
    moved: Actions = [("fail", 2), ("replan", 0), ("settle", 0), ("step", 0)]
    assert faults(lab, moe, [("join", 1), ("join", 0), ("step", 0), *moved, *moved, ("step", 0)], False) > 0
