"""The draft lengths of an engine's generations: its governor, and the ways to draft."""

from __future__ import annotations

from spac.config import EngineConfig
from spac.engine.events import Events
from spac.engine.expert_cache import ExpertCache
from spac.errors import InputError
from spac.governor import BatchGovernor, FixedGovernor, Governor, RooflineGovernor
from spac.machine.arrays import BoolArray, Float64Array
from spac.model.pair import ModelPair


class DraftLengths:
    """The governor of an engine, and the fixed length that may replace it."""

    def __init__(
        self, config: EngineConfig, pair: ModelPair, expert_cache: ExpertCache, events: Events
    ) -> None:
        """Choose a governor as the configuration asks for it. `events` has the scheduler."""
        self._config, self._experts, self._events = config, pair.experts, events
        self.configured = self._choose(expert_cache)
        """The configuration's governor; None without speculation."""
        self.governor = self.configured
        """The governor in use: the configuration's, or a fixed length (`fix`)."""

    @property
    def _budget_s(self) -> float | None:
        budget = self._config.latency_budget
        return None if budget is None else budget / 1e3

    def _resident(self) -> BoolArray:
        assert self._experts is not None
        return self._experts.residency() >= 0

    def _window_misses(self) -> Float64Array | None:
        driver = self._events.driver
        return driver.scheduler.window_misses if driver is not None else None

    def _choose(self, expert_cache: ExpertCache) -> Governor | None:
        config = self._config
        if not config.draft_types:
            return None
        if not config.is_governed:
            return FixedGovernor(config.longest_draft)
        costs = expert_cache.costs
        governor = RooflineGovernor(
            config.longest_draft,
            shortest=config.draft_min,
            budget_s=self._budget_s,
            costs=costs.estimator.costs if costs is not None and costs.measured else None,
            draft_time=costs.estimator.draft_time if costs is not None else None,
            resident=None if self._experts is None or costs is None else self._resident,
            foreseen=self._window_misses,
        )
        if costs is not None:
            costs.about_drafts = lambda: governor.about
        return governor

    def of_steps(self) -> BatchGovernor:
        """Return the choice of draft lengths for the steps of a loop."""
        config = self._config

        def of_several() -> Governor:  # It learns all times from the steps of so many sequences.
            return RooflineGovernor(config.longest_draft, shortest=config.draft_min, budget_s=self._budget_s)

        return BatchGovernor(lambda: self.governor, of_several, config.longest_draft)

    def fix(self, n: int | None) -> None:
        """Draft n tokens a step from the next generation on; None restores the configuration's governor.

        Raise InputError unless n is from 0 to the longest draft that the engine was made for.
        """
        longest = self._config.longest_draft if self._config.draft_types else 0
        if n is None:
            self.governor = self.configured
        elif 0 <= n <= longest:
            self.governor = FixedGovernor(n) if longest else None
        else:
            more = "; start with --draft-max for more" if longest else ", for there is no draft"
            raise InputError(f"draft length {n}: 0 to {longest} here{more}")
