"""The controller drives the steps of a session under a governor. These tests cover its reports to the
governor, and the figures that it keeps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spac.governor import DraftLengthController, Governor

COSTS = np.dtype([("host_ns", np.int64), ("host_distinct", np.int32)])


class Session:
    """Session that drafts the requested tokens. One of them is accepted."""

    draft_max = 6

    def __init__(self):
        self.draft_length = 6
        self.asked, self.set = [], []

    def set_draft_length(self, n):
        self.set.append(n)
        self.draft_length = n

    def step(self):
        n = self.draft_length
        self.asked.append(n)
        return SimpleNamespace(
            n_drafted=n, n_accepted=min(n, 1), n_verified=n + 1, draft_ns=2_000_000 * n,
            demand=np.full((2, 4), n, np.int32),
            layer_costs=np.array([(3_000_000, 5), (1_000_000, 2)], COSTS),
        )  # fmt: skip


class Recorded(Governor):
    name = "recorded"
    wants_experts = True

    def __init__(self, *lengths):
        self.lengths, self.rooms, self.seen, self.counts = list(lengths), [], [], []

    def choose(self, room):
        self.rooms.append(room)
        return self.lengths.pop(0)

    def demand(self, counts, n_verified):
        self.counts.append((int(counts.sum()), n_verified))

    def observe(self, *values):
        self.seen.append(values)

    @property
    def expected(self):
        return 2.0, 0.5


def test_a_step_is_as_long_as_the_governor_says():
    governor, session = Recorded(6, 6, 2, 9, 0), Session()
    controller = DraftLengthController(governor, session)
    for room in (None, 10, 3, 1, 0):
        controller.step(room)
    assert session.asked == [6, 6, 2, 6, 0]  # never more than the session can draft
    assert session.set == [6, 2, 6, 0]
    assert governor.rooms[1:] == [9, 2, 0, 0]  # one of the wanted tokens is the target's own
    assert governor.rooms[0] > 1000
    assert dict(controller.lengths) == {6: 3, 2: 1, 0: 1}
    assert (controller.expected_tokens, controller.expected_s) == (10.0, 2.5)


def test_a_length_that_does_not_change_is_left_to_others():
    """A scheduler may set the length from an event."""
    session = Session()
    controller = DraftLengthController(Recorded(4, 4, 4), session)
    controller.step(None)
    session.set_draft_length(1)
    controller.step(None)
    assert session.asked == [4, 1]


def test_the_governor_learns_the_result():
    governor = Recorded(3)
    DraftLengthController(governor, Session()).step(None)
    n_drafted, n_accepted, draft_s, step_s, misses, miss_s = governor.seen[0]
    assert (n_drafted, n_accepted, misses) == (3, 1, 7)
    assert draft_s == pytest.approx(6e-3)
    assert miss_s == pytest.approx(4e-3)
    assert step_s > 0
    assert governor.counts == [(2 * 4 * 3, 4)]
