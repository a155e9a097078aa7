"""Recorded demand: what a model's steps used, and what was predicted of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.errors import InputError
from spac.machine.arrays import Float32Array, Int32Array
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View


@dataclass(frozen=True)
class Demand:
    """The demand of a model, step by step.

    Raise InputError for arrays of inconsistent shapes.
    """

    layers: tuple[Layer, ...]
    counts: Int32Array  # [T, L, N] activations
    verified: Int32Array  # [T] tokens that the target evaluated
    accepted: Int32Array  # [T] drafted tokens that it accepted
    routes: Int32Array | None = None  # [T, L, tokens, U] experts of every token, -1 padded (View.routes)
    draft_routes: Int32Array | None = None  # the draft's predictions, in the same form (View.draft_routes)
    texts: Int32Array | None = None  # [T] the number of every step's text (View.text); None: one text
    of_target: bool = False  # these are the target's routers' choices for the draft's states, best first
    draft_shares: Float32Array | None = None  # their confidences, in the same form (View.draft_shares)

    def __post_init__(self) -> None:
        n_step, n_layer = len(self.counts), len(self.layers)
        if self.counts.ndim != 3 or self.counts.shape[1] != n_layer:
            raise InputError(f"demand must have the shape [T, {n_layer}, N], not {list(self.counts.shape)}")
        if self.verified.shape != (n_step,) or self.accepted.shape != (n_step,):
            raise InputError(f"demand of {n_step} steps needs as many counts of verified and accepted tokens")
        if self.texts is not None and self.texts.shape != (n_step,):
            raise InputError(f"demand of {n_step} steps needs the numbers of as many texts")
        for routes in (self.routes, self.draft_routes, self.draft_shares):
            if routes is not None and (routes.ndim != 4 or routes.shape[:2] != (n_step, n_layer)):
                raise InputError(
                    f"routes must have the shape [{n_step}, {n_layer}, tokens, experts of each], "
                    f"not {list(routes.shape)}"
                )

    @classmethod
    def of(cls, counts: Int32Array, n_used: int, expert_bytes: int = 1) -> Demand:
        """Return demand of equal layers that share one pool.

        The counts give the number of verified tokens, and all drafted tokens count as accepted.
        """
        _, n_layer, n_expert = counts.shape
        layers = tuple(Layer(f"layer {i}", n_expert, n_used, expert_bytes, 0) for i in range(n_layer))
        verified = (counts[:, 0].sum(axis=1) // n_used).astype(np.int32)
        return cls(layers, counts.astype(np.int32), verified, np.maximum(verified - 1, 0))

    def part(self, steps: slice) -> Demand:
        """Return the demand of some of the steps."""
        names = ("counts", "verified", "accepted", "routes", "draft_routes", "texts", "draft_shares")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{name: each[steps] for name, each in parts.items() if each is not None})

    def drafts_for(self, scheduler: Scheduler) -> Int32Array | None:
        """Return the recorded draft routes if they are of the kind that `scheduler` follows, else None.

        Raise InputError if it needs the target's routers' choices, and these were not recorded.
        """
        if scheduler.wants_target_routes and not (self.of_target and self.draft_routes is not None):
            raise InputError(
                f"scheduler '{scheduler.name}' needs what the target's routers choose for the draft's "
                "states, which this recording lacks: record it with --target-routes"
            )
        wanted = scheduler.wants_target_routes or (scheduler.wants_draft_routes and not self.of_target)
        return self.draft_routes if wanted else None

    def save(self, path: Path) -> None:
        """Write the demand to `path` as a compressed .npz."""
        fields = [(x.name, x.n_expert, x.n_used, x.expert_bytes, x.pool) for x in self.layers]
        no_routes = np.zeros((len(self.counts), len(self.layers), 0, 0))
        np.savez_compressed(
            path,
            names=np.array([x[0] for x in fields]),
            layers=np.array([x[1:] for x in fields], np.int64).reshape(-1, 4),
            counts=self.counts.astype(np.uint16),
            verified=self.verified,
            accepted=self.accepted,
            routes=(no_routes if self.routes is None else self.routes).astype(np.int16),
            draft_routes=(no_routes if self.draft_routes is None else self.draft_routes).astype(np.int16),
            texts=np.zeros(0, np.int32) if self.texts is None else self.texts,
            of_target=np.array(self.of_target),
            draft_shares=(no_routes if self.draft_shares is None else self.draft_shares).astype(np.float16),
        )

    @classmethod
    def load(cls, path: Path) -> Demand:
        """Read the demand that `save` wrote. Raise InputError for another file."""
        try:
            with np.load(path) as file:
                layers = tuple(
                    Layer(str(name), *map(int, row))
                    for name, row in zip(file["names"], file["layers"], strict=True)
                )
                counts = file["counts"].astype(np.int32)
                routes, draft_routes, texts = (
                    file[name].astype(np.int32) if name in file and file[name].size else None
                    for name in ("routes", "draft_routes", "texts")
                )
                of_target = bool(file["of_target"]) if "of_target" in file else False
                known = "draft_shares" in file and file["draft_shares"].size
                shares = file["draft_shares"].astype(np.float32) if known else None
                verified, accepted = file["verified"], file["accepted"]
                return cls(layers, counts, verified, accepted, routes, draft_routes, texts, of_target, shares)
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a recording of demand: {error}") from None


class Recorder(Scheduler):
    """Passes all events to another scheduler, and records the demand."""

    name = "recorder"
    wants_routes = misses_no_draft = True

    def __init__(
        self, inner: Scheduler, *, draft_routes: bool = False, target_routes: int | None = None
    ) -> None:
        """Wrap `inner`.

        draft_routes: record the draft's routes even if `inner` does not ask for them. target_routes: record
        what the target's routers choose for the draft's states in all layers, this many times as many experts
        as a token uses. `inner` sees its critical ones of them, or no draft if it does not ask for them.
        """
        self._inner, self._times = inner, target_routes
        self.wants_draft_routes = target_routes is None and (draft_routes or inner.wants_draft_routes)  # type: ignore[misc]
        self.wants_target_routes = target_routes is not None or inner.wants_target_routes  # type: ignore[misc]
        asked = {Event.START, Event.VERIFY_END}
        if self.wants_draft_routes or self.wants_target_routes:
            asked |= {Event.DRAFT_TOKEN, Event.DRAFT_END}
        self._hides = target_routes is not None and not inner.wants_target_routes
        passed = frozenset[Event]() if self._hides else inner.events
        self.by_recency, self.sees_prompts = inner.by_recency, inner.sees_prompts  # type: ignore[misc]
        self.lookahead = inner.lookahead  # type: ignore[misc]
        self.events = passed | asked  # type: ignore[misc]
        self._layers: tuple[Layer, ...] = ()
        self.clear()

    @property
    def n_step(self) -> int:
        """The number of recorded steps."""
        return len(self._steps)

    def clear(self) -> None:
        """Forget all recorded steps."""
        self._steps: list[tuple[Int32Array, int, int, int]] = []
        self._routes: list[Int32Array] = []
        self._draft_routes: list[Int32Array] = []
        self._draft_shares: list[Float32Array] = []

    def on(self, event: Event, view: View) -> Plan | None:
        """Record the event, and return the answer of the inner scheduler."""
        self._layers = view.layers
        if event == Event.START and self._times is not None:
            self.critical = np.array(
                [min(self._times * layer.n_used, layer.n_expert) for layer in view.layers], np.int32
            )
        if event == Event.DRAFT_END and view.draft_routes is not None:
            del self._draft_routes[len(self._steps) :]  # a step may have stopped before its verification
            self._draft_routes.append(view.draft_routes.copy())
            del self._draft_shares[len(self._steps) :]
            if view.draft_shares is not None:
                self._draft_shares.append(view.draft_shares.copy())
        if event == Event.VERIFY_END:
            self._steps.append((view.demand.copy(), view.n_verified, view.n_accepted, view.text))
            self._routes += [view.routes.copy()] if view.routes is not None else []
        of_draft = event in (Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END)
        if self._times is not None and of_draft and view.draft_routes is not None:
            view = replace(view, draft_routes=critical_only(view.draft_routes, self._inner.critical))
        hidden = self._hides and of_draft
        plan = None if hidden or event not in self._inner.events else self._inner.on(event, view)
        self.window_misses = self._inner.window_misses
        if self._times is None:
            self.critical = self._inner.critical
        return plan

    @property
    def demand(self) -> Demand:
        """The recorded demand. Raise InputError before the first step."""
        if not self._steps:
            raise InputError("nothing has been recorded yet")
        counts, verified, accepted, texts = zip(*self._steps, strict=True)
        routes, draft_routes, shares = (
            _stacked(each, fill) if len(each) == len(self._steps) else None
            for each, fill in ((self._routes, -1), (self._draft_routes, -1), (self._draft_shares, 0))
        )
        return Demand(
            self._layers,
            np.stack(counts),
            np.array(verified, np.int32),
            np.array(accepted, np.int32),
            routes,
            draft_routes,
            np.array(texts, np.int32),
            self._times is not None,
            shares,
        )


def _stacked(routes: list[npt.NDArray[Any]], fill: int) -> npt.NDArray[Any]:
    """Return the routes of all steps, [T, L, tokens, U], padded with `fill` to the longest step."""
    shape = np.max([each.shape for each in routes], axis=0)
    found = np.full((len(routes), *shape), fill, routes[0].dtype)
    for step, each in zip(found, routes, strict=True):
        n_layer, n_token, n_used = each.shape
        step[:n_layer, :n_token, :n_used] = each
    return found


def routes_of_step(drafts: Int32Array | None, step: int, scheduler: Scheduler) -> Int32Array:
    """Return one step's draft routes as `scheduler` sees them, int32 [L, T, U].

    drafts: int32 [steps, L, T, U], or None, which gives no tokens. A scheduler that asks the target's routers
    sees its critical experts only.
    """
    if drafts is None:
        return np.zeros((0, 0, 0), np.int32)
    tokens = drafts[step]
    if scheduler.wants_target_routes:
        tokens = critical_only(tokens, scheduler.critical)
    known = np.flatnonzero((drafts[step] >= 0).any(axis=(0, 2)))
    return np.ascontiguousarray(tokens[:, : int(known[-1]) + 1 if known.size else 0], np.int32)


def critical_only(tokens: Int32Array, critical: Int32Array) -> Int32Array:
    """Return `tokens`, int32 [L, T, U], with the `critical` best experts of each layer alone, int32 [n]."""
    named = np.zeros(len(tokens), np.int32)
    named[: len(critical)] = critical
    return np.where(np.arange(tokens.shape[2]) < named[:, None, None], tokens, -1)


def known_layers(tokens: Int32Array, index: int, layer: int) -> Int32Array:
    """Return the part of `tokens`, int32 [L, T, U], that is known once token `index` has passed a layer."""
    known: Int32Array = tokens[:, : index + 1].copy()
    if index < tokens.shape[1]:
        known[layer + 1 :, index] = -1
    return known
