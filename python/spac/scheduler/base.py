"""The contract between a scheduler and the mechanism below it.

A scheduler is a function from what decoding showed to what should be resident. It never copies, waits or
locks: it returns a `Plan`, and the reconciler drives the slots toward it in the background.

Arrays are indexed [layer, expert]. L is the number of MoE layers in the order in which they run, N the
largest number of experts of any layer; a layer with fewer experts has its last columns padded (`View.exists`
is False there).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from spac.costs import LiveCosts
from spac.errors import InputError
from spac.scheduler.routers import FloatArray, Gates

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
StateArrays = dict[str, npt.NDArray[Any]]
"""What a scheduler learned, by name; see `Scheduler.state`."""


class Event(StrEnum):
    """When a scheduler is asked. Values are the session's names of the events."""

    START = "start"  # once, when the slots have been attached and are empty
    DRAFT_TOKEN = "draft_token"  # a token has been drafted
    DRAFT_END = "draft_end"  # the draft is complete and the target has not seen it yet
    VERIFY_END = "verify_end"  # the target has verified the draft: `View.demand` is this step's
    # A layer of the verification has been computed: `View.demand` has its row, `View.layer` its number. It
    # does not run again in this step. Asking for it takes time in every layer.
    VERIFY_LAYER = "verify_layer"


@dataclass(frozen=True)
class Layer:
    """One MoE layer, as the model's file has it."""

    name: str
    n_expert: int
    n_used: int  # experts per token; 0 before the first graph
    expert_bytes: int
    pool: int  # layers with equal shapes and types share a pool of slots


@dataclass(frozen=True)
class View:
    """What a scheduler may know. Arrays are valid during the call only: copy what must last."""

    layers: tuple[Layer, ...]
    pool_slots: IntArray  # [pool] slots of every pool
    slot_of: IntArray  # [L, N] the slot of an expert, -1 when it is not resident
    demand: IntArray  # [L, N] activations in the step that has just been verified; zeros for other events
    # but VERIFY_LAYER, which knows one layer's
    step: int = 0  # steps verified before this event
    n_drafted: int = 0  # tokens drafted in this step so far
    n_verified: int = 0  # tokens the target evaluated in this step
    n_accepted: int = 0  # drafted tokens that it accepted
    layer: int = -1  # of VERIFY_LAYER
    costs: LiveCosts | None = None  # what things cost on this machine, where somebody measures it
    routes: IntArray | None = None  # [L, T, U] of VERIFY_END, in C order, for schedulers that ask: every
    # token's experts, in the order of the tokens, rejected ones included; -1 where a layer has fewer
    draft_routes: IntArray | None = None  # [L, T, U] of DRAFT_TOKEN and DRAFT_END, for schedulers that ask:
    # what the draft's routers chose for the first T tokens that will be verified. Evaluating a token draws
    # the next: after n drafted ones T is n, the token before the draft first; the n-th drafted is missing.
    # It is there, T = n + 1, where the draft ended at a token that it refused. T is 0 without a draft
    draft_states: FloatArray | None = None  # [D, T, E] likewise: what enters the FFNs of the draft's D layers
    gates: Gates | None = None  # the target's routers, for schedulers that ask for these states

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def n_expert(self) -> int:
        """N: the largest number of experts of any layer."""
        return max((layer.n_expert for layer in self.layers), default=0)

    @property
    def exists(self) -> BoolArray:
        """bool [L, N]: False where a layer has no such expert."""
        counts = np.array([layer.n_expert for layer in self.layers], dtype=np.int32)
        return np.asarray(np.arange(self.n_expert)[None, :] < counts[:, None])


@dataclass(frozen=True)
class Plan:
    """The state that the slots are to be driven toward.

    An expert is wanted when its priority is at least its layer's threshold. The highest priority is loaded
    first, and an upload never evicts equal or higher priority. Where `layers` is given, only the rows it
    marks are meant and the others keep what an earlier plan said.
    """

    priority: IntArray  # [L, N]
    threshold: IntArray  # [L]
    layers: BoolArray | None = field(default=None)  # [L], or None for all

    def __post_init__(self) -> None:
        for name, rank in (("priority", 2), ("threshold", 1)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != np.int32 or array.ndim != rank:
                shape = "[L, N]" if rank == 2 else "[L]"
                raise InputError(f"a plan's {name} must be an int32 array of shape {shape}")
        n_layer = self.priority.shape[0]
        if self.threshold.shape != (n_layer,):
            raise InputError(
                f"a plan for {n_layer} layers needs as many thresholds, not {self.threshold.size}"
            )
        if self.layers is not None and (self.layers.dtype != np.bool_ or self.layers.shape != (n_layer,)):
            raise InputError(f"a plan's layers must be a bool array of shape [{n_layer}]")

    @property
    def wanted(self) -> BoolArray:
        """bool [L, N]: the experts that the plan wants resident (False in rows that it leaves alone)."""
        wanted = self.priority >= self.threshold[:, None]
        if self.layers is not None:
            wanted &= self.layers[:, None]
        return np.asarray(wanted)

    def over(self, earlier: Plan) -> Plan:
        """A complete plan: these rows where this plan speaks, else those of `earlier` (itself complete)."""
        if self.priority.shape != earlier.priority.shape:
            raise InputError(f"a plan has shape {self.priority.shape}, the model {earlier.priority.shape}")
        if self.layers is None:
            return self
        priority = np.where(self.layers[:, None], self.priority, earlier.priority)
        threshold = np.where(self.layers, self.threshold, earlier.threshold)
        return Plan(priority.astype(np.int32), threshold.astype(np.int32))

    @classmethod
    def nothing(cls, n_layer: int, n_expert: int) -> Plan:
        """The plan that wants no expert resident."""
        return cls(np.zeros((n_layer, n_expert), np.int32), np.ones(n_layer, np.int32))


class Scheduler(ABC):
    """Decides what is resident. One object serves one model, from one thread."""

    name: ClassVar[str]
    events: ClassVar[frozenset[Event]] = frozenset({Event.START, Event.VERIFY_END})
    """The events that `on` is called for; others cost nothing."""
    wants_routes: ClassVar[bool] = False
    """Whether `View.routes` is to be filled at VERIFY_END; it is None for others, and costs them nothing."""
    wants_draft_routes: ClassVar[bool] = False
    """Whether `View.draft_routes` is to be filled, for which the draft must have the target's layers and
    experts (a quantized copy of it has); an engine with another one refuses the scheduler."""
    wants_draft_states: ClassVar[bool] = False
    """Whether `View.draft_states` and `View.gates` are to be filled, for which the draft must have the
    target's width and as many layers; an engine with another one refuses the scheduler."""

    @abstractmethod
    def on(self, event: Event, view: View) -> Plan | None:
        """The plan from now on, or None to leave the last one standing."""

    def state(self) -> StateArrays:
        """What it has learned since START, for a restart that does not begin cold: arrays by name, none with
        Python objects. They depend on model and options in shapes and dtypes, and on nothing else in those.
        """
        return {}

    def restore(self, state: StateArrays) -> None:  # noqa: B027  (nothing learned, nothing to restore)
        """Go on from what `state` of another process gave: with the names, shapes and dtypes of this one's.

        Comes after START. The plan that was in force is restored beside it.
        """


def share_slots(layers: tuple[Layer, ...], pool_slots: IntArray) -> IntArray:
    """int32 [L]: every pool's slots shared out evenly over its layers.

    No layer gets more than its experts; what it cannot use goes to the others of its pool, the earlier first.
    """
    shares = np.zeros(len(layers), np.int32)
    counts = np.array([layer.n_expert for layer in layers], np.int32)
    pools = np.array([layer.pool for layer in layers], np.int32)
    for pool in np.unique(pools):
        members = np.flatnonzero(pools == pool)
        left = min(int(pool_slots[pool]), int(counts[members].sum()))
        while left:
            unfilled = members[shares[members] < counts[members]]
            if left < len(unfilled):
                shares[unfilled[:left]] += 1
                break
            grant = np.minimum(counts[unfilled] - shares[unfilled], left // len(unfilled))
            shares[unfilled] += grant
            left -= int(grant.sum())
    return shares
