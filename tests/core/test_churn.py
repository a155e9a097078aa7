"""Counts of useless evictions and uploads equal those of a plain version that keeps the whole history."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core

N_LAYER, N_EXPERT = 2, 4


@dataclass
class History:
    """Record of all events. It judges at the end by looking back over them."""

    events: list[tuple[str, int, int, int, tuple[bool, ...], tuple[bool, ...]]] = field(default_factory=list)

    def add(self, kind, layer, expert=-1, version=0, wanted=(), hit=()):
        self.events.append((kind, layer, expert, version, wanted, hit))

    def wasted(self) -> int:
        """Return the number of loads that an eviction ends without a hit in between."""
        count = 0
        for at, (kind, layer, expert, *_) in enumerate(self.events):
            if kind != "load":
                continue
            for other, its_layer, its_expert, _, _, hit in self.events[at + 1 :]:
                if its_layer != layer:
                    continue
                if other == "run" and hit[expert]:
                    break
                if other == "evict" and its_expert == expert:
                    count += 1
                    break
        return count

    def early(self) -> int:
        """Return the number of evictions whose expert the layer's first run with as new a mask wants."""
        count = 0
        for at, (kind, layer, expert, version, *_) in enumerate(self.events):
            if kind != "evict":
                continue
            for other, its_layer, its_expert, its_version, wanted, _ in self.events[at + 1 :]:
                if its_layer != layer:
                    continue
                if other == "evict" and its_expert == expert:
                    break  # evicted again before any run could judge the first eviction
                if other == "run" and its_version >= version:
                    count += wanted[expert]
                    break
        return count


@given(st.data())
def test_against_the_history(data):
    churn, history = _core.Churn(), History()
    resident: set[tuple[int, int]] = set()
    versions = [1] * N_LAYER  # version of each layer's newest mask
    for _ in range(data.draw(st.integers(0, 30))):
        layer = data.draw(st.integers(0, N_LAYER - 1))
        here = sorted(e for its_layer, e in resident if its_layer == layer)
        kind = data.draw(st.sampled_from(["load", "evict", "run"]))
        if kind == "load":
            absent = sorted(set(range(N_EXPERT)) - set(here))
            if absent:
                expert = data.draw(st.sampled_from(absent))
                versions[layer] += 1
                resident.add((layer, expert))
                churn.loaded(layer, expert)
                history.add("load", layer, expert)
        elif kind == "evict" and here:
            expert = data.draw(st.sampled_from(here))
            versions[layer] += 1
            resident.remove((layer, expert))
            churn.evicted(layer, expert, versions[layer])
            history.add("evict", layer, expert, versions[layer])
        elif kind == "run":
            # A run may have begun before the last event, with an older mask.
            version = data.draw(st.integers(1, versions[layer]))
            wanted = tuple(data.draw(st.lists(st.booleans(), min_size=N_EXPERT, max_size=N_EXPERT)))
            hit = tuple(w and data.draw(st.booleans()) for w in wanted)
            churn.executed(layer, version, wanted, hit)
            history.add("run", layer, -1, version, wanted, hit)
        assert churn.n_wasted == history.wasted()
        assert churn.n_early == history.early()


@pytest.mark.parametrize(("version", "early"), [(4, 0), (5, 1), (6, 1)])
def test_an_execution_with_an_older_mask_does_not_judge_an_eviction(version, early):
    churn = _core.Churn()
    churn.evicted(0, 1, 5)
    churn.executed(0, version, [False, True], [False, True])
    assert churn.n_early == early
    churn.executed(0, 7, [False, False], [False, False])
    churn.executed(0, 7, [False, True], [False, False])
    assert churn.n_early == early  # the first run that could judge has done so
