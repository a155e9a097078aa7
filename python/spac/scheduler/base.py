"""The contract between a scheduler and the mechanism below it.

A scheduler is a function from observed decoding to the residency that is wanted. It never copies, waits or
locks. It returns a `Plan`, and the reconciler drives the slots toward it in the background.

Arrays are indexed [layer, expert]. L is the number of MoE layers, in the order in which they run. N is the
largest number of experts of any layer. A layer with fewer experts has padding in its last columns, where
`View.exists` is False.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from spac.costs import LiveCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.scheduler.options import Options

StateArrays = dict[str, npt.NDArray[Any]]
"""The arrays that a scheduler learned, by name; see `Scheduler.state`."""
UNIT = 1 << 20
"""The priority of one certain use, and of one utility level. Hundreds of them fit into an int32."""
LEAST = 1e-12
"""The lower bound of learned averages. Smaller ones become 0, because denormal numbers are slow."""


class Event(StrEnum):
    """The events at which a scheduler is asked. Values are the loop's names of the events."""

    START = "start"  # after empty slots have been attached, and again when their number has changed
    # The draft has computed a layer of its next token. `View.draft_routes` has what the target's routers
    # choose for it. Only schedulers with `routers` "target" are asked, on a thread of its own, and as often
    # as they can be: with several layers at once if those have come meanwhile. Deterministic runs do not ask.
    DRAFT_LAYER = "draft_layer"
    DRAFT_TOKEN = "draft_token"  # a token has been drafted
    DRAFT_END = "draft_end"  # the draft is complete, and the target has not evaluated it yet
    VERIFY_END = "verify_end"  # the target has verified the draft; `View.demand` has this step's demand
    # A layer of the verification has been computed. `View.demand` has its row, and `View.layer` its number.
    # It does not run again in this step. A scheduler that asks for this event is called once a layer, which
    # takes time.
    VERIFY_LAYER = "verify_layer"


@dataclass(frozen=True)
class Layer:
    """One MoE layer of the model's file."""

    name: str
    n_expert: int
    n_used: int  # experts per token; 0 before the first graph
    expert_bytes: int
    pool: int  # layers with equal shapes and types share a pool of slots


@dataclass(frozen=True)
class View:
    """The facts that a scheduler may use.

    Arrays are valid during the call only, so a scheduler copies what it keeps.
    """

    layers: tuple[Layer, ...]
    pool_slots: Int32Array
    """The number of slots of every pool, int32 [pool]."""
    slot_of: Int32Array
    """The slot of every expert, int32 [L, N]; -1 if the expert is not resident."""
    demand: Int32Array
    """Activations in this step, int32 [L, N], at VERIFY_END and VERIFY_LAYER.

    VERIFY_LAYER has the row of one layer only. Events other than these two have zeros.
    """
    step: int = 0
    """The number of steps that were verified before this event."""
    text: int = 0
    """The number of the text that is generated, from 1 on; 0 where nothing counts texts."""
    n_drafted: int = 0
    """The number of tokens drafted in this step so far."""
    n_verified: int = 0
    """The number of tokens that the target evaluated in this step."""
    n_accepted: int = 0
    """The number of drafted tokens that the target accepted."""
    layer: int = -1
    """The layer of VERIFY_LAYER; -1 for other events."""
    costs: LiveCosts | None = None
    """The measured costs of this machine; None where nothing measures them."""
    routes: Int32Array | None = None
    """Every token's experts at VERIFY_END, int32 [L, T, U] in C order, for schedulers that ask.

    Tokens stand in their order, rejected ones included. Entries are -1 where a layer uses fewer experts.
    """
    draft_routes: Int32Array | None = None
    """The predicted choices of routers, int32 [L, T, U], for schedulers that ask, -1 where there is none.

    They are the choices of the draft's own routers, or of the target's routers for the draft's hidden states
    (`Scheduler.routers`), best first. They are there at DRAFT_TOKEN and DRAFT_END, and cover the first T
    tokens that will be verified. The evaluation of a token yields the next token. So after n drafted tokens T
    is n: the token before the draft comes first, and the n-th drafted token is missing. If the draft ended at
    a token that it refused, the n-th is there too and T = n + 1. T is 0 without a draft. At DRAFT_LAYER the
    last token is the one that the draft computes, as far as its layers are known. If several slots of
    llama.cpp's loop draft in a step, their drafts follow one another. Then DRAFT_TOKEN also comes behind a
    token at which a slot's draft ended, and its `n_drafted` is T.
    """

    @property
    def n_layer(self) -> int:
        """L: the number of MoE layers."""
        return len(self.layers)

    @property
    def n_expert(self) -> int:
        """N: the largest number of experts of any layer."""
        return max((layer.n_expert for layer in self.layers), default=0)

    @property
    def exists(self) -> BoolArray:
        """True where a layer has such an expert, bool [L, N]."""
        counts = np.array([layer.n_expert for layer in self.layers], dtype=np.int32)
        return np.asarray(np.arange(self.n_expert)[None, :] < counts[:, None])


RealArray = npt.NDArray[Any]
"""An array of integers, floating-point numbers or truth values."""


@dataclass(frozen=True)
class Plan:
    """The state toward which the reconciler drives the slots.

    An expert is wanted when its priority is at least its layer's threshold. The highest priority is loaded
    first. An upload never evicts an expert of equal or higher priority. If `layers` is given, the plan covers
    only the rows that it marks, and the other rows keep an earlier plan.

    Only the order of priorities and thresholds counts, across all layers. They may be real numbers of any
    type, infinite ones too, but not NaN. int32 arrays are used as they are. Raise InputError for other
    arrays and shapes.
    """

    priority: RealArray  # [L, N]
    threshold: RealArray  # [L]
    layers: BoolArray | None = field(default=None)  # [L], or None for all

    def __post_init__(self) -> None:
        for name, rank in (("priority", 2), ("threshold", 1)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim != rank:
                shape = "[L, N]" if rank == 2 else "[L]"
                raise InputError(f"a plan's {name} must be an array of real numbers of shape {shape}")
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise InputError(f"a plan's {name} has NaN, which has no place in an order: give a number")
        n_layer = self.priority.shape[0]
        if self.threshold.shape != (n_layer,):
            raise InputError(
                f"a plan for {n_layer} layers needs as many thresholds, not {self.threshold.size}"
            )
        if self.layers is not None and (self.layers.dtype != np.bool_ or self.layers.shape != (n_layer,)):
            raise InputError(f"a plan's layers must be a bool array of shape [{n_layer}]")

    @property
    def wanted(self) -> BoolArray:
        """The experts that the plan wants resident, bool [L, N]; False in rows that it does not cover."""
        priority, threshold = _comparable(self.priority, self.threshold)
        wanted = priority >= threshold[:, None]
        if self.layers is not None:
            wanted &= self.layers[:, None]
        return np.asarray(wanted)

    def over(self, earlier: Plan) -> Plan:
        """Return a complete plan: the rows that this plan covers, and the other rows of `earlier`.

        `earlier` must be complete. Raise InputError if the shapes differ.
        """
        if self.priority.shape != earlier.priority.shape:
            raise InputError(f"a plan has shape {self.priority.shape}, the model {earlier.priority.shape}")
        if self.layers is None:
            return self
        priority = np.where(self.layers[:, None], *_comparable(self.priority, earlier.priority))
        threshold = np.where(self.layers, *_comparable(self.threshold, earlier.threshold))
        return Plan(priority, threshold)

    def ranked(self) -> Plan:
        """Return the plan with int32 arrays of the same order: ranks, or its own arrays if they are int32."""
        if self.priority.dtype == self.threshold.dtype == np.int32:
            return self
        priority, threshold = _comparable(self.priority, self.threshold)
        _, ranks = np.unique(np.append(priority, threshold), return_inverse=True)
        ranks, n = ranks.astype(np.int32), priority.size
        return Plan(ranks[:n].reshape(priority.shape), ranks[n:], self.layers)

    @classmethod
    def nothing(cls, n_layer: int, n_expert: int) -> Plan:
        """Return the plan that wants no expert resident."""
        return cls(np.zeros((n_layer, n_expert), np.int32), np.ones(n_layer, np.int32))


def _comparable(*arrays: RealArray) -> list[RealArray]:
    """Return the arrays in one type that holds all their values exactly."""
    kind = np.result_type(*arrays)
    if kind.kind == "f" and any(array.dtype.kind in "iu" and array.itemsize == 8 for array in arrays):
        kind = np.dtype(np.longdouble)  # Its 64 bits or more hold every integer.
    return [array.astype(kind, copy=False) for array in arrays]


class Scheduler(ABC):
    """A scheduler decides which experts are resident. One object serves one model, from one thread."""

    name: ClassVar[str]
    option_type: ClassVar[type[Options]] = Options
    """The options that the constructor takes, by name."""
    events: ClassVar[frozenset[Event]] = frozenset({Event.START, Event.VERIFY_END})
    """The events for which `on` is called. Other events cost nothing."""
    by_recency: ClassVar[bool] = False
    """True if plans keep what was used last.

    With `--miss load`, an expert that is loaded then takes the place of the least wanted one at once, as the
    next plan would have it.
    """
    wants_routes: ClassVar[bool] = False
    """True if `View.routes` is filled at VERIFY_END. Otherwise it is None and costs nothing."""
    sees_prompts: ClassVar[bool] = False
    """True if `on` is also called for each of the last tokens of a prompt, before its first step.

    Each token comes as a VERIFY_END of one token. These tokens are no steps, and nothing counts their hits.
    """
    routers: ClassVar[Literal["draft", "target"] | None] = None
    """The model whose routers fill `View.draft_routes`. None: it is None and costs nothing.

    "draft": the draft must have the target's layers and experts, as a quantized copy has. Unless the run is
    deterministic, a thread of its own calls `on` for the events of a draft, and leaves out events that come
    too fast. "target": its routers choose by the draft's hidden states, so the draft must have the target's
    width and as many layers. An engine with another draft refuses the scheduler.
    """
    critical: Int32Array = np.zeros(0, np.int32)
    """The number of experts that the target's routers choose for a draft's token, int32 [n].

    It is for the first n layers, and only with `routers` "target". It is read after START and VERIFY_END, and
    holds for the next draft.
    """
    window_misses: Float64Array | None = None
    """The predicted misses of windows of the first 1 … T tokens of the last draft, float64 [T].

    A miss is a distinct (layer, expert) that a token of the window is predicted to use and that was not
    resident when the draft ended. None if nothing is predicted. The governor reads it after the verification.
    """
    lookahead: ClassVar[int | None] = None
    """The number of layers ahead whose experts this system loads within a step, 0 for none.

    The mechanism does it, where `--lookahead` is not given and a device gains by it. None: as many as it does
    by default.
    """

    @abstractmethod
    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan that holds from now on, or None to keep the last one."""

    def state(self) -> StateArrays:
        """Return what the scheduler has learned since START, as arrays by name without Python objects.

        A restart begins warm with it. Shapes and dtypes depend on the model and the options only.
        """
        return {}

    def restore(self, state: StateArrays) -> None:  # noqa: B027  (nothing learned, nothing to restore)
        """Continue from the result of `state` of another process.

        Names, shapes and dtypes are those of this scheduler's own state. The call comes after START. The plan
        that was in force is restored separately. When the number of slots changes, the same scheduler gets
        START again, and then what it had learned before.
        """

    def for_new_text(self, state: StateArrays) -> StateArrays:
        """Return a result of `state` as a run should start with it whose text is another one."""
        return state


def share_slots(layers: tuple[Layer, ...], pool_slots: Int32Array) -> Int32Array:
    """Return the slots of each layer, int32 [L]: every pool's slots, divided evenly among its layers.

    No layer gets more slots than it has experts. The slots that it cannot use go to other layers of its pool,
    earlier layers first.
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
