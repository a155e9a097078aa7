"""The tables of transitions: what they count and foretell, and their fast form beside the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.schedulers.trace import Trace
from spac import scheduler
from spac.replay import replay
from spac.scheduler import Event, logistic
from spac.scheduler.logistic import FLOOR, KEPT, SHRINK, LogisticScheduler, source_layers
from tests.scheduler.reference_logistic import Reference, Transitions
from tests.scheduler.test_logistic import views
from tests.scheduler.views import make_view, models


@settings(deadline=None, max_examples=40)
@given(models(), st.integers(0, 2**32), st.integers(2, 12))
def test_the_fast_tables_are_the_reference_to_the_bit(model, seed, n_step):
    subjects = [LogisticScheduler(), Reference()]
    for subject in subjects:
        subject.on(Event.START, make_view(model[0], model[2], model[1]))
    for view in views(model, seed, n_step):
        for subject in subjects:
            subject.on(Event.VERIFY_END, view)
        fast, plain = (subject.state() for subject in subjects)
        for name in ("table", "seen", "marked", "popularity", "popularity_steps"):
            np.testing.assert_array_equal(fast[name], plain[name], err_msg=name)
        np.testing.assert_array_equal(fast["features"][6:], plain["features"][6:])


def step(tables: Transitions, *experts: list[int]) -> np.ndarray:
    """Let the tables learn from one token's experts in every layer, and return the next step's features."""
    shape = tables.popularity.shape
    demand = np.zeros(shape, np.int32)
    for row, chosen in zip(demand, experts, strict=True):
        row[chosen] = 1
    tables.learn(demand > 0)
    tables.mark(demand, None, 0)
    out = np.zeros((5, *shape))
    tables.write(out)
    return out


def test_the_tables_count_what_followed():
    tables = Transitions(np.ones((2, 4), np.bool_))
    assert tables.source.tolist() == [1, 0]  # the last layer, and the one before it
    step(tables, [0], [1])
    step(tables, [2], [3])
    features = step(tables, [0], [1])  # 2 and 3 followed expert 1 of the last layer
    assert tables.table[0, 1, 0].tolist() == [0, 0, 1, 0]
    assert tables.table[0, 1, 1].tolist() == [0, 0, 0, 1]
    share = KEPT / (KEPT + SHRINK)  # the step after it is one step old
    chance = tables.popularity
    q = share * np.array([0, 0, 1, 0]) + (1 - share) * chance[0]
    odds = (chance[0] + FLOOR) / (1 - chance[0] + FLOOR)
    np.testing.assert_allclose(features[0, 0], np.log(odds), rtol=1e-5)
    np.testing.assert_allclose(features[1, 0], np.log((q + FLOOR) / (1 - q + FLOOR) / odds), rtol=1e-4)
    assert not features[3:].any()  # there are two layers only


def test_an_unknown_token_foretells_nothing():
    tables = Transitions(np.ones((3, 4), np.bool_))
    step(tables, [0], [1], [2])
    routes = np.full((3, 2, 1), -1, np.int32)
    tables.mark(np.zeros((3, 4), np.int32), routes, 2)  # the routes have two tokens
    assert not tables.marked.any()
    tables.mark(np.full((3, 4), 2, np.int32), None, 3)  # and without routes, four tokens cannot be told apart
    assert not tables.marked.any()
    out = np.ones((5, 3, 4))
    tables.write(out)
    assert not out[1:].any()
    assert out[0].any()


def test_large_models_have_fewer_sources(monkeypatch):
    exists = np.ones((6, 8), np.bool_)
    monkeypatch.setattr(logistic, "MOST_BYTES", 2 * 4 * 8 * 6 * 8)
    assert source_layers(*exists.shape).tolist() == [5, 4]
    monkeypatch.setattr(logistic, "MOST_BYTES", 0)
    subjects = [LogisticScheduler(), Reference()]
    for view in [make_view([8] * 6, [9]), *views(([8] * 6, [0] * 6, [9]), 0, 4)]:
        for subject in subjects:
            subject.on(Event.START if not view.n_verified else Event.VERIFY_END, view)
    np.testing.assert_allclose(subjects[0].probability, subjects[1].probability, rtol=1e-6)
    assert subjects[0].probability.any()


def grammar(
    n_token: int, *, n_layer: int = 5, n_expert: int = 24, text: int = 0, another: bool = False
) -> Trace:
    """Return a trace whose tokens are words of a grammar. A word fixes all experts. Two words can follow.

    text: the seed of the choices among them. another: other words follow.
    """
    rng = np.random.default_rng(4)
    n_word = 40
    of_word = np.argsort(rng.random((n_word, n_layer, n_expert)), axis=2)[..., :2]
    words = [0]
    following = rng.integers(0, n_word, (n_word, 2))
    following = following[::-1] if another else following
    for choice in np.random.default_rng(text).integers(0, 2, n_token - 1):
        words.append(int(following[words[-1], choice]))
    return Trace(of_word[words].astype(np.int32), np.array([n_token], np.int32), n_expert)


def test_it_learns_which_token_comes_next():
    """Neither recency nor frequency tells more than a third of it."""
    demand = grammar(1200).demand()
    rate = {
        name: replay(scheduler.make(name), demand, 20).hit_rate_distinct
        for name in ("lru", "ewma", "logistic")
    }
    assert rate["logistic"] > max(rate["lru"], rate["ewma"]) + 0.15
    blind = replace(demand, routes=None, verified=demand.verified + 1)  # no routes, and no step of one token
    assert rate["logistic"] > replay(LogisticScheduler(), blind, 20).hit_rate_distinct + 0.1


def test_another_text_soon_outweighs_what_was_kept():
    """A new text of the same grammar gains by the tables, and one of another grammar loses little."""
    first, kept, rates = LogisticScheduler(), LogisticScheduler(), {}
    replay(first, grammar(900).demand(), 20)

    class Warm(LogisticScheduler):
        def __init__(self, state):
            super().__init__()
            self.start = state

        def on(self, event, view):
            plan = super().on(event, view)
            if event == Event.START:
                self.restore(self.start)
            return plan

    starts = {"as it was": first.state(), "kept": kept.for_new_text(first.state())}
    assert not starts["kept"]["features"].any()
    assert not starts["kept"]["marked"].any()
    for name in ("same", "other"):
        part = grammar(100, text=1, another=name == "other").demand()
        rates[name] = {key: replay(Warm(state), part, 20).hit_rate_distinct for key, state in starts.items()}
        rates[name]["cold"] = replay(LogisticScheduler(), part, 20).hit_rate_distinct
    assert rates["same"]["kept"] > rates["same"]["cold"] + 0.02
    assert rates["other"]["kept"] > rates["other"]["as it was"] + 0.01


@pytest.mark.parametrize("window", [1, 3])
def test_the_last_accepted_token_is_the_one_that_counts(window):
    subject = LogisticScheduler()
    view = make_view([6, 6], [4])
    subject.on(Event.START, view)
    routes = np.array([[[0], [1], [2]], [[3], [4], [5]]], np.int32)
    demand = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], np.int32)
    subject.on(Event.VERIFY_END, replace(
        view, demand=demand, routes=routes, n_verified=3, n_drafted=2, n_accepted=window - 1
    ))  # fmt: skip
    marked = subject.state()["marked"]
    assert np.flatnonzero(marked[0]).tolist() == [2 + window]  # of the last layer
    assert np.flatnonzero(marked[1]).tolist() == [window - 1]
