"""Copies bring all of a layer's experts together, each from its place. There are no more than pay off."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spac import _core

SLOTS = st.lists(st.integers(-1, 60).filter(lambda slot: slot != 0), max_size=40)
"""Values of slot_of. Two experts may share a slot here, which changes nothing."""
BYTES = st.integers(1, 1000)


def expanded(runs: list[tuple[int, int, int]]) -> list[int]:
    """Return the slot from which every expert comes."""
    experts = [(first + i, slot + i if slot >= 0 else -1) for first, n, slot in runs for i in range(n)]
    assert [expert for expert, _ in experts] == list(range(len(experts)))
    return [slot for _, slot in experts]


@given(SLOTS, BYTES)
def test_without_a_price_of_copies_nothing_resident_comes_over_the_link(
    slot_of: list[int], expert_bytes: int
) -> None:
    runs = _core.copy_runs(slot_of, expert_bytes, 0)
    assert expanded(runs) == slot_of
    for (_, _, before), (_, _, after) in pairwise(runs):
        assert before >= 0 or after >= 0  # neighbours over the link are one copy


@given(SLOTS, BYTES, BYTES)
def test_residents_come_over_the_link_where_copies_of_their_own_take_longer(
    slot_of: list[int], expert_bytes: int, copy_bytes: int
) -> None:
    sources = expanded(_core.copy_runs(slot_of, expert_bytes, copy_bytes))
    first = 0
    while first < len(slot_of):
        end = first
        while end < len(slot_of) and (slot_of[end] < 0) == (slot_of[first] < 0):
            end += 1
        n = end - first
        if slot_of[first] < 0 or n * expert_bytes <= (n + 1) * copy_bytes:
            assert sources[first:end] == [-1] * n
        else:
            assert sources[first:end] == slot_of[first:end]
        first = end


def test_neighbours_in_neighbouring_slots_are_one_copy() -> None:
    assert _core.copy_runs([4, 5, -1, -1, 6, 8], 10, 0) == [(0, 2, 4), (2, 2, -1), (4, 1, 6), (5, 1, 8)]
    assert _core.copy_runs([5, 4, 3], 10, 0) == [(0, 1, 5), (1, 1, 4), (2, 1, 3)]


def test_one_copy_for_all_where_experts_are_small() -> None:
    assert _core.copy_runs([-1, 3, -1, 7, 8, 9, -1], 10, 10) == [(0, 7, -1)]
    assert _core.copy_runs([-1, 3, -1, 7, 8, 9, -1], 10, 5) == [(0, 3, -1), (3, 3, 7), (6, 1, -1)]
