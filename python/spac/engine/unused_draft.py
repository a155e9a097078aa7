"""A draft that the governor does not use gives its memory to the slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spac.config import EngineConfig
from spac.governor import BatchGovernor, Governor, RooflineGovernor
from spac.model.devices import memory_is_given
from spac.model.pair import ModelPair

if TYPE_CHECKING:
    from spac.scheduler import Scheduler

IDLE_STEPS = 512
"""The number of steps in a row, without a draft in force, after which a draft leaves the device."""
LEAST_GAIN = 0.01
"""The least share of all experts for which the draft's memory must have room."""


class UnusedDraft:
    """Counts the steps for which the governor chose no draft; its probes count as such steps."""

    def __init__(self, config: EngineConfig, pair: ModelPair) -> None:
        """Begin to count for a pair that has been loaded."""
        self._pair, self._n_idle = pair, 0
        device = pair.device
        self.may_leave = (
            pair.draft is not None
            and pair.owns_draft
            and pair.experts is not None
            and config.draft_types == ("draft-simple",)
            and config.slots.is_auto
            and device is not None
            and (not device.shares_host_memory or memory_is_given(device))
        )
        """True if the slots could use the draft's memory. Otherwise, steps need not be counted."""

    def observe(self, governor: Governor | BatchGovernor | None) -> None:
        """Count a step that has ended."""
        idle = isinstance(governor, RooflineGovernor | BatchGovernor) and governor.in_force == 0
        self._n_idle = self._n_idle + 1 if idle else 0

    def leaves(self, scheduler: Scheduler | None) -> bool:
        """Return True if the draft's memory is worth more as slots. `scheduler` may need the draft."""
        pair = self._pair
        if not self.may_leave or self._n_idle < IDLE_STEPS or pair.draft is None or pair.experts is None:
            return False
        if scheduler is None or scheduler.wants_draft_routes or scheduler.wants_target_routes:
            return False
        layers = pair.experts.layers
        n_experts = sum(layer.n_expert for layer in layers)
        mean_bytes = sum(layer.n_expert * layer.expert_bytes for layer in layers) / n_experts
        room = min(pair.draft.n_bytes / mean_bytes, n_experts - pair.experts.slots.n_slots)
        return room >= max(1.0, LEAST_GAIN * n_experts)
