"""Recorded demand: what a model's steps used, and what was predicted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spac.errors import InputError, one_line
from spac.machine.arrays import Int32Array
from spac.machine.files import check_unpacked, plain
from spac.scheduler.base import Layer

if TYPE_CHECKING:
    import spac._core as _core

_PREDICTED = 3  # recorded predictions of a token by the target's routers, per expert that it uses


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

    def __post_init__(self) -> None:
        n_step, n_layer = len(self.counts), len(self.layers)
        if self.counts.ndim != 3 or self.counts.shape[1] != n_layer:
            raise InputError(f"demand must have the shape [T, {n_layer}, N], not {list(self.counts.shape)}")
        if self.verified.shape != (n_step,) or self.accepted.shape != (n_step,):
            raise InputError(f"demand of {n_step} steps needs as many counts of verified and accepted tokens")
        if self.texts is not None and self.texts.shape != (n_step,):
            raise InputError(f"demand of {n_step} steps needs the numbers of as many texts")
        for routes in (self.routes, self.draft_routes):
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
        names = ("counts", "verified", "accepted", "routes", "draft_routes", "texts")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{name: each[steps] for name, each in parts.items() if each is not None})

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a recording's file by their names; what is not known has no entries."""
        fields = [(x.name, x.n_expert, x.n_used, x.expert_bytes, x.pool) for x in self.layers]

        def known(values: npt.NDArray[Any] | None, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            return np.zeros(0, dtype) if values is None else values.astype(dtype)

        return {
            "names": np.array([x[0] for x in fields]),
            "layers": np.array([x[1:] for x in fields], np.int64).reshape(-1, 4),
            "counts": known(self.counts, np.uint16),
            "verified": self.verified,
            "accepted": self.accepted,
            "routes": known(self.routes, np.int16),
            "draft_routes": known(self.draft_routes, np.int16),
            "texts": known(self.texts, np.int32),
            "of_target": np.array(self.of_target),
        }

    def save(self, path: Path) -> None:
        """Write the demand to `path` as a compressed .npz."""
        np.savez_compressed(path, **self.arrays)

    @classmethod
    def load(cls, path: Path) -> Demand:
        """Read the demand of a recording. Raise InputError for a file without it."""
        try:
            with plain(path) as data, np.load(data) as file:
                check_unpacked(file.zip)
                names, rows = file["names"], file["layers"]
                layers = tuple(
                    Layer(str(name), *map(int, row)) for name, row in zip(names, rows, strict=True)
                )
                routes, draft_routes, texts = (
                    file[name].astype(np.int32) if file[name].size else None
                    for name in ("routes", "draft_routes", "texts")
                )
                counts, of_target = file["counts"].astype(np.int32), bool(file["of_target"])
                verified, accepted = file["verified"], file["accepted"]
                return cls(layers, counts, verified, accepted, routes, draft_routes, texts, of_target)
        except Exception as error:  # the readers of archives raise many kinds of errors
            raise InputError(f"{path} is not a recording of demand: {one_line(str(error))}") from None


class DemandRecorder:
    """Records the demand of one generation's steps, and what was predicted of each."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        """Record nothing yet. layers: the model's MoE layers."""
        self._layers = tuple(layers)
        self.critical: Int32Array = np.array(
            [min(_PREDICTED * layer.n_used, layer.n_expert) for layer in layers], np.int32
        )
        """The number of experts that the target's routers are asked for, int32 [L]."""
        self._of_target = False
        self._draft: Int32Array | None = None
        self._steps: list[tuple[npt.NDArray[Any], int, int]] = []
        self._routes: list[Int32Array] = []
        self._drafts: list[Int32Array] = []

    def drafted(self, routes: Int32Array, *, of_target: bool = False) -> None:
        """Record what is predicted at the end of a draft, as in `View.draft_routes`.

        of_target: these are the choices of the target's routers.
        """
        self._draft = routes.copy()
        self._of_target = of_target

    def verified(self, step: _core.Step, routes: Int32Array) -> None:
        """Record a step that is over, with the experts of its tokens, int32 [L, T, U]."""
        self._steps.append((step.demand.astype(np.uint16), step.n_verified, step.n_accepted))
        if routes.shape[1]:  # experts with an adapter have none
            self._routes.append(routes.copy())
        if self._draft is not None:
            self._drafts.append(self._draft)
        self._draft = None

    @property
    def demand(self) -> Demand | None:
        """The recorded demand; None before the first step."""
        if not self._steps:
            return None
        counts, verified, accepted = zip(*self._steps, strict=True)
        routes, draft_routes = (
            _stacked(each) if len(each) == len(self._steps) else None for each in (self._routes, self._drafts)
        )
        return Demand(
            self._layers,
            np.stack(counts).astype(np.int32),
            np.array(verified, np.int32),
            np.array(accepted, np.int32),
            routes,
            draft_routes,
            np.ones(len(counts), np.int32),
            self._of_target,
        )


def _stacked(routes: list[Int32Array]) -> Int32Array:
    """Return the routes of all steps, [T, L, tokens, U], padded with -1 to the longest step."""
    shape = np.max([each.shape for each in routes], axis=0)
    found = np.full((len(routes), *shape), -1, np.int32)
    for step, each in zip(found, routes, strict=True):
        n_layer, n_token, n_used = each.shape
        step[:n_layer, :n_token, :n_used] = each
    return found


def critical_only(tokens: Int32Array, critical: Int32Array) -> Int32Array:
    """Return `tokens`, int32 [L, T, U], with the `critical` best experts of each layer alone, int32 [n]."""
    named = np.zeros(len(tokens), np.int32)
    named[: len(critical)] = critical
    return np.where(np.arange(tokens.shape[2]) < named[:, None, None], tokens, -1)


def activations_of(routes: Int32Array, n_expert: int) -> Int32Array:
    """Return the number of tokens that use each expert, int32 [L, N].

    routes: int32 [L, T, U], -1 where there is no expert. A token names an expert once.
    """
    n_layer, (layer, _, _) = len(routes), np.nonzero(routes >= 0)
    at = layer * n_expert + routes[routes >= 0]
    return np.bincount(at, minlength=n_layer * n_expert).reshape(n_layer, n_expert).astype(np.int32)
