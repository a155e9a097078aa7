"""A mapping is pinned in slices. Copies from it are cut into pieces."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from spac import _core

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
def test_slices(layout: tuple[tuple[int, int], Extents], slice_bytes: int, most: int) -> None:
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
def test_without_a_limit_all_pages_between_weights_are_pinned(
    layout: tuple[tuple[int, int], Extents], slice_bytes: int
) -> None:
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
def test_pieces(borders: list[int], begin: int, n_bytes: int) -> None:
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
