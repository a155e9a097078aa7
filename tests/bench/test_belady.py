"""The bounds equal the best of all histories of slots, on instances that are small enough to try them all."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.schedulers.belady import NEVER, belady, clairvoyant, next_use
from spac import scheduler
from spac.replay import Demand, replay

SMALL = arrays(np.int32, st.tuples(st.integers(1, 6), st.just(2), st.just(2)), elements=st.integers(0, 2))


def subsets(items: set[int], most: int) -> list[frozenset[int]]:
    return [frozenset(c) for n in range(most + 1) for c in combinations(sorted(items), n)]


def best_by_trial(counts: np.ndarray, n_slots: int, *, prefetch: bool) -> int:
    """Return the most hits over all residencies. Without `prefetch`, experts enter only in steps that use
    them."""
    flat = counts.reshape(len(counts), -1) > 0
    experts = set(range(flat.shape[1]))
    start = subsets(experts, n_slots) if prefetch else [frozenset()]
    hits: dict[frozenset[int], int] = dict.fromkeys(start, 0)
    for now in flat:
        used = set(np.flatnonzero(now).tolist())
        after: dict[frozenset[int], int] = {}
        for resident, n_hit in hits.items():
            reachable = experts if prefetch else set(resident) | used
            for later in subsets(reachable, n_slots):
                after[later] = max(after.get(later, 0), n_hit + len(resident & used))
        hits = after
    return max(hits.values())


@settings(deadline=None)
@given(SMALL, st.integers(0, 4))
def test_belady_is_the_optimum(counts, n_slots):
    assert belady(counts, [0, 0], [n_slots]).distinct_hit == best_by_trial(counts, n_slots, prefetch=False)


@settings(deadline=None)
@given(SMALL, st.integers(0, 4))
def test_clairvoyance_is_the_optimum_with_prefetch(counts, n_slots):
    bound = clairvoyant(counts, [0, 0], [n_slots])
    assert bound.distinct_hit == best_by_trial(counts, n_slots, prefetch=True)


@given(SMALL, st.integers(0, 3), st.integers(0, 3))
def test_pools_are_bounded_one_by_one(counts, first, second):
    for bound in (belady, clairvoyant):
        both = bound(counts, [0, 1], [first, second])
        alone = [bound(counts[:, [i]], [0], [n]) for i, n in enumerate((first, second))]
        assert both.distinct_hit == sum(x.distinct_hit for x in alone)
        assert both.uploads == sum(x.uploads for x in alone)


@given(SMALL)
def test_next_use(counts):
    following = next_use(counts)
    for index in np.ndindex(counts.shape):
        later = [t for t in range(index[0] + 1, len(counts)) if counts[(t, *index[1:])]]
        assert following[index] == (later[0] if later else NEVER)


@settings(deadline=None, max_examples=40)
@given(
    arrays(np.int32, st.tuples(st.integers(1, 25), st.just(3), st.just(5)), elements=st.integers(0, 3)),
    st.integers(0, 15),
    st.sampled_from(["lru", "static", "ewma", "moe-spac"]),
)
def test_no_scheduler_exceeds_its_bound(counts, n_slots, name):
    counts[:, :, 0] += 1
    result = replay(scheduler.make(name), Demand.of(counts, n_used=1), n_slots)
    assert result.distinct_hit <= clairvoyant(counts, [0] * 3, [n_slots]).distinct_hit
    if name == "lru":  # it loads only experts that were just used
        assert result.distinct_hit <= belady(counts, [0] * 3, [n_slots]).distinct_hit
