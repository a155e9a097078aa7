"""Copies bring all of a layer's experts together, each from its place. There are no more than pay off."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from spac import _core

SLOTS = st.lists(st.just(-1) | st.integers(1, 60), max_size=12)
"""Values of slot_of. Two experts may share a slot here, which changes nothing."""
BYTES = st.integers(1, 9)


def expanded(runs: list[tuple[int, int, int]]) -> list[int]:
    """Return the slot from which every expert comes."""
    experts = [(first + i, slot + i if slot >= 0 else -1) for first, n, slot in runs for i in range(n)]
    assert [expert for expert, _ in experts] == list(range(len(experts)))
    return [slot for _, slot in experts]


@given(SLOTS, BYTES)
def test_without_a_price_of_copies_nothing_resident_comes_over_the_link(slot_of, expert_bytes):
    runs = _core.copy_runs(slot_of, expert_bytes, 0)
    assert expanded(runs) == slot_of
    for (_, _, before), (_, _, after) in pairwise(runs):
        assert before >= 0 or after >= 0  # neighbours over the link are one copy


@given(SLOTS, BYTES, BYTES)
def test_residents_come_over_the_link_where_copies_of_their_own_take_longer(
    slot_of, expert_bytes, copy_bytes
):
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


def test_neighbours_in_neighbouring_slots_are_one_copy():
    assert _core.copy_runs([4, 5, -1, -1, 6, 8], 10, 0) == [(0, 2, 4), (2, 2, -1), (4, 1, 6), (5, 1, 8)]
    assert _core.copy_runs([5, 4, 3], 10, 0) == [(0, 1, 5), (1, 1, 4), (2, 1, 3)]


# A mapping is pinned in slices. Copies from it are cut into pieces.


PAGE = 16
Extents = list[tuple[int, int]]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, int], Extents]:
    """Draw a mapping and the weights in it, with other tensors between some of them."""
    sizes = draw(st.lists(st.integers(1, 100), min_size=1, max_size=12))
    ends = list(accumulate(sizes, initial=draw(st.integers(PAGE, 500))))
    tensors = list(pairwise(ends))
    weights = [tensor for tensor in tensors if draw(st.booleans())] or tensors[:1]
    return (weights[0][0], weights[-1][1]), weights


@given(layouts(), st.integers(1, 200), st.integers(0, 1000))
def test_slices(layout, slice_bytes, most):
    mapping, weights = layout
    slices = _core.pin_slices(mapping, weights, PAGE, slice_bytes, most)
    assert sum(end - begin for begin, end in slices) <= most
    for begin, end in slices:
        assert mapping[0] <= begin < end <= mapping[1]
        for border in (begin, end):
            assert border % PAGE == 0
            assert any(first <= border <= last for first, last in weights)
    assert all(a[1] == b[0] for a, b in pairwise(slices))


@given(layouts(), st.integers(1, 200))
def test_without_a_limit_all_pages_between_weights_are_pinned(layout, slice_bytes):
    mapping, weights = layout
    slices = _core.pin_slices(mapping, weights, PAGE, slice_bytes, 1 << 40)
    borders = [
        page
        for page in range(0, mapping[1] + 1, PAGE)
        if any(first <= page <= last for first, last in weights)
    ]
    if len(borders) < 2:
        assert slices == []
    else:
        assert (slices[0][0], slices[-1][1]) == (borders[0], borders[-1])
    one = _core.pin_slices(mapping, weights, PAGE, 1 << 40, 1 << 40)
    assert len(one) <= 1


@given(st.lists(st.integers(0, 300), unique=True, max_size=12), st.integers(0, 300), st.integers(1, 300))
def test_pieces(borders, begin, n_bytes):
    borders = sorted(borders)
    # Some ranges touch, and some do not.
    ranges = [pair for i, pair in enumerate(pairwise(borders)) if i % 3 != 1]
    pieces = _core.pinned_slices(ranges, begin, n_bytes)
    at = 0
    for offset, size, pinned in pieces:
        assert offset == at
        assert size > 0
        first, last = begin + offset, begin + offset + size
        if pinned:
            assert any(a <= first and last <= b for a, b in ranges)
        else:
            assert all(last <= a or b <= first for a, b in ranges)
        at += size
    assert at == n_bytes
    assert len(pieces) <= 2 * len(ranges) + 1
