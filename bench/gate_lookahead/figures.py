"""Predictors of a token's experts, and how much of what matters each of them tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.gate_lookahead.hidden_states import FloatArray, Routers
from spac.scheduler import Scheduler
from spac.scheduler.base import BoolArray, Event, Plan, View
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.replay import Demand, replay

_RIDGE = 1e-2  # of the mean square of an input


@dataclass(frozen=True)
class Told:
    """Of distinct experts that the steps used; shares."""

    recall: float
    precision: float
    recall_absent: float
    """Of those that were not resident."""
    precision_absent: float
    """Of the predicted that were not resident: what a copy is worth."""
    absent_wrong: float
    """Of the wrong predictions, those that were not resident."""


def told(predicted: BoolArray, used: BoolArray, resident: BoolArray) -> Told:
    """All bool [T, L, N]."""
    right = predicted & used
    absent, wrong = ~resident, predicted & ~used

    def share(some: BoolArray, of: BoolArray) -> float:
        return float(some.sum() / max(1, of.sum()))

    return Told(
        share(right, used), share(right, predicted), share(right & absent, used & absent),
        share(right & absent, predicted & absent), share(wrong & absent, wrong),
    )  # fmt: skip


def top(scores: npt.NDArray[np.floating], k: int) -> BoolArray:
    """bool, of the same shape: the k highest of the last axis."""
    best = np.argpartition(-scores, k - 1, axis=-1)[..., :k]
    found = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(found, best, True, axis=-1)
    return found


class Gates:
    """Logits of layer l + d, from the input of layer l."""

    def __init__(self, routers: Routers, inputs: FloatArray, logits: FloatArray, train: slice) -> None:
        """inputs: [T, L, E], logits: [T, L, N], of the tokens; train: those that may be learned from."""
        self._routers, self._inputs, self._logits, self._train = routers, inputs, logits, train

    def raw(self, distance: int) -> FloatArray:
        """[T, L - d, N]: that layer's router, fed with the earlier layer's input as it is."""
        return np.einsum("tle,lne->tln", self._inputs[:, :-distance], self._routers.router[distance:])

    def folded(self, distance: int) -> FloatArray:
        """The same, the input's norm weights exchanged for those of the router's own layer."""
        norm = self._routers.norm
        ratio = norm[distance:] / np.where(norm[:-distance] == 0, 1, norm[:-distance])
        return np.einsum("tle,lne->tln", self._inputs[:, :-distance] * ratio, self._routers.router[distance:])

    def shifted(self, distance: int) -> FloatArray:
        """Plus what was missing in the mean: what the layers between add to every token."""
        found = self.folded(distance)
        return found + (self._logits[self._train, distance:] - found[self._train]).mean(0)

    def fitted(self, distance: int) -> FloatArray:
        """Plus a linear map of the input, by least squares: what such a predictor can reach with training."""
        found = self.shifted(distance)
        for il in range(found.shape[1]):
            x = self._inputs[:, il].astype(np.float64)
            some = x[self._train]
            missing = (self._logits[self._train, il + distance] - found[self._train, il]).astype(np.float64)
            gram = some.T @ some
            gram += np.eye(len(gram)) * _RIDGE * np.trace(gram) / len(gram)
            found[:, il] += (x @ np.linalg.solve(gram, some.T @ missing)).astype(np.float32)
        return found


class Watched(Scheduler):
    """Passes events on to the logistic scheduler and keeps the probabilities that it gave every step."""

    name = "watched"
    wants_routes = True

    def __init__(self) -> None:
        self.inner = LogisticScheduler()
        self.probability: list[npt.NDArray[np.float64]] = []

    def on(self, event: Event, view: View) -> Plan | None:
        plan = self.inner.on(event, view)
        self.probability.append(self.inner.probability.copy())
        return plan


def by_history(demand: Demand, slots: int, scheduler: Scheduler) -> tuple[BoolArray, FloatArray]:
    """What a scheduler keeps resident (bool [T, L, N]), and logistic's probabilities before every step."""
    resident = replay(scheduler, demand, slots).resident
    watched = Watched()
    replay(watched, demand, slots)
    return resident, np.stack(watched.probability[:-1]).astype(np.float32)


def joined(chosen: BoolArray, tokens: int) -> BoolArray:
    """bool [T // tokens, L, N]: of steps of so many tokens each."""
    n_step = len(chosen) // tokens
    return np.asarray(chosen[: n_step * tokens].reshape(n_step, tokens, *chosen.shape[1:]).any(1))


def demand_of(chosen: BoolArray, tokens: int, n_used: int) -> Demand:
    """As a session would record it, all drafts accepted."""
    n_step = len(chosen) // tokens
    steps = chosen[: n_step * tokens].reshape(n_step, tokens, *chosen.shape[1:])
    routes = np.argsort(~steps, axis=-1, kind="stable")[..., :n_used].transpose(0, 2, 1, 3)
    demand = Demand.of(steps.sum(1).astype(np.int32), n_used)
    return Demand(demand.layers, demand.counts, demand.verified, demand.accepted, routes.astype(np.int32))
