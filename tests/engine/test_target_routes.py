"""The choices of the target's routers are collected token by token, and reach the scheduler by layers."""

from __future__ import annotations

from queue import Queue
from threading import Event

import numpy as np
import pytest

from spac.engine.target_routes import TargetRoutes


class FakeTap:
    """A tap whose answers the test writes."""

    def __init__(self) -> None:
        self.n_shown, self.last, self.asked = 0, None, []
        self.waiting: Queue = Queue()

    def ask(self, target, inputs, n_chosen):
        self.asked.append((inputs, n_chosen))

    def answers(self):
        last, self.last = self.last, None
        return last

    def show(self, *rows):
        self.n_shown += 1
        self.last = np.array(rows, np.int32)

    def next(self, token, n):
        return self.waiting.get()

    def stop(self):
        self.waiting.put(None)


@pytest.fixture
def pair():
    tap = FakeTap()
    routes = TargetRoutes(tap, None, [1, 2, 3], most=5)
    routes.ask(np.array([2, 1], np.int32))
    return tap, routes


def test_a_refused_token_is_shown_and_a_gap_is_not(pair):
    tap, routes = pair
    tap.show([7, 5], [4, -1])
    routes.drafted(1)
    tap.show([3, 2], [1, -1])
    assert routes.at_end(1)[:, 1].tolist() == [[3, 2], [1, -1], [-1, -1]]
    tap.n_shown += 1
    assert routes.drafted(1).shape[1] == 0, "the token was not shown"


def test_what_a_listener_raises_reaches_the_caller(pair):
    tap, routes = pair
    heard, called = [], Event()

    def hear(token, chosen):
        heard.append((token, len(chosen)))
        called.set()
        if token == 2:
            raise ValueError("a fault of the scheduler")

    routes.listen(hear)
    tap.waiting.put((1, np.zeros((1, 2), np.int32)))
    assert called.wait(10)
    tap.waiting.put((2, np.zeros((2, 2), np.int32)))
    routes.close()
    assert heard == [(1, 1), (2, 2)]
    assert tap.asked[-1] == ([], [])
    with pytest.raises(ValueError, match="a fault of the scheduler"):
        routes.drafted(1)
