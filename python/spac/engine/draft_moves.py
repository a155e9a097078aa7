"""Moves of the draft: off the device when it does not pay, and back when it promises to."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from spac import _core
from spac.config import EngineConfig
from spac.costs.in_use import CostsInUse
from spac.engine import draft_return
from spac.engine.batch import Batch
from spac.engine.draft_experts import attach_draft
from spac.engine.draft_return import DraftOnCpu, DraftReturn
from spac.engine.memory_budget import MemoryBudget
from spac.engine.unused_draft import UnusedDraft
from spac.errors import SpacError, one_line
from spac.governor import BatchGovernor, Governor, RooflineGovernor
from spac.machine.arrays import BoolArray
from spac.machine.device_memory import size
from spac.model.pair import ModelPair

if TYPE_CHECKING:
    from spac.scheduler import Scheduler


@dataclass(frozen=True)
class BatchJudge:
    """Tells what drafts would bring to as many sequences as run."""

    several: BatchGovernor
    alone: RooflineGovernor

    def promise(self, agreed: BoolArray) -> float:
        """Return the seconds per token with drafts. agreed: see `rates_of`."""
        return self.several.promise(agreed, self.alone)


class DraftMoves:
    """Moves the draft of one engine. All methods run on the thread that runs the session."""

    def __init__(self, config: EngineConfig, pair: ModelPair, costs: CostsInUse | None) -> None:
        """Begin with a draft that has been loaded, or with none."""
        self._config, self._pair, self._costs = config, pair, costs
        self._unused = UnusedDraft(config, pair)
        self.may_move = self._unused.may_leave
        """True if the slots could use the draft's memory. Otherwise, steps need not be observed."""
        self.governor: Governor | None = None
        """The governor after the last move; None if the draft has left."""
        self._away: DraftReturn | None = None
        self._resting: RooflineGovernor | None = None
        self._freed = self._n_left = 0

    def close(self) -> None:
        """Free the draft on the CPU."""
        if self._away is not None:
            self._away.close()
        self._away = None

    def begin(self) -> None:
        """Note that a new text begins."""
        if self._away is not None:
            self._away.begin()

    def observe(self, step: _core.Step, governor: Governor | BatchGovernor | None) -> None:
        """Count a step that has ended."""
        if self._away is not None:
            self._away.observe(step)
        else:
            self._unused.observe(governor)

    def move(
        self,
        using: _core.Session | Batch,
        memory: MemoryBudget,
        governor: Governor | None,
        scheduler: Scheduler | None,
    ) -> str:
        """Move the draft if that pays, and return a note for the user; "" if nothing changed.

        Call this between the steps of what is `using` the draft. `governor` chooses the length of the draft's
        tokens. The attribute `governor` tells which one does after a move.
        """
        if self._away is not None:
            return self._look(using, memory, self._away)
        if isinstance(governor, RooflineGovernor) and self._unused.leaves(scheduler):
            return self._leave(using, memory, governor)
        return ""

    def _leave(self, using: _core.Session | Batch, memory: MemoryBudget, governor: RooflineGovernor) -> str:
        draft, experts = self._pair.draft, self._pair.experts
        assert draft is not None
        assert experts is not None
        n_bytes, n_slots, used, started = draft.n_bytes, experts.slots.n_slots, memory.used, perf_counter()
        (using.session if isinstance(using, Batch) else using).drop_drafts()
        self._pair.drop_draft()
        self._freed = used - memory.used
        memory.refit()
        self._n_left += 1
        change_s = perf_counter() - started + experts.slots.n_slots * self._upload_s
        config, pair = self._config, self._pair
        self._resting, self.governor = governor, None
        if config.latency_budget is None:  # A trial is a pause between two tokens.
            judge = BatchJudge(using.governor, governor) if isinstance(using, Batch) else governor
            self._away = DraftReturn(judge, lambda: DraftOnCpu(config, pair), self._n_left, change_s)
        self.may_move = self._away is not None
        more = experts.slots.n_slots - n_slots
        return f"drafting does not pay: the draft's {size(n_bytes)} hold {more} more experts from now on"

    def _look(self, using: _core.Session | Batch, memory: MemoryBudget, away: DraftReturn) -> str:
        text = using.longest_text(draft_return.TOKENS) if isinstance(using, Batch) else using
        try:
            if text is None or not away.returns(text):
                return ""
            return self._return(using, memory, away)
        except SpacError as error:
            self._away = None
            self.may_move = False
            return f"the draft cannot be loaded again, so nothing is drafted: {one_line(str(error))}"
        finally:
            if self._away is not away:
                away.close()

    def _return(self, using: _core.Session | Batch, memory: MemoryBudget, away: DraftReturn) -> str:
        pair, experts, governor = self._pair, self._pair.experts, self._resting
        assert experts is not None
        assert governor is not None
        n_slots = experts.slots.n_slots
        memory.make_room(self._freed)
        try:
            pair.return_draft()
            assert pair.draft_context is not None
            if pair.device is not None:
                attach_draft(pair.draft_experts, pair.device)
            if isinstance(using, Batch):
                using.session.resume_drafts(pair.draft_context.pointer, pair.draft_head)
                using.governor.resume(away.agreed)
            else:
                using.resume_drafts(pair.draft_context.pointer, pair.draft_experts, pair.draft_head)
        except SpacError:
            pair.drop_draft()
            memory.refit()
            raise
        governor.resume(away.agreed)
        self._away, self._resting, self.governor = None, None, governor
        self._unused = UnusedDraft(self._config, pair)
        fewer, share = n_slots - experts.slots.n_slots, float(away.agreed.mean())
        return (
            f"the draft is back, as it agrees with {share:.0%} of the text: {fewer} fewer experts have slots"
        )

    @property
    def _upload_s(self) -> float:
        """The mean seconds of the copy of one expert."""
        experts = self._pair.experts
        if self._costs is None or experts is None:
            return 0.0
        costs, layers = self._costs.estimator.costs, experts.layers
        return sum(costs.experts[layer.pool].upload_s for layer in layers) / len(layers)
