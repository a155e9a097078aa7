"""The slots of a served client's models, and the schedulers that fill them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spac.config import EngineConfig
from spac.config.engine import DEFAULT_LOOKAHEAD
from spac.config.values import StreamBatch
from spac.costs import Costs
from spac.engine.prefill_streaming import PromptStreams
from spac.engine.setting import n_experts
from spac.engine.slots import attach_at_most, attach_slots, holders, spares, wanted_slots
from spac.errors import InputError, OutOfMemoryError, SpacError, one_line
from spac.scheduler import Event, Scheduler, make
from spac.scheduler.driver import Driver

if TYPE_CHECKING:
    from spac import _core

OPTIONS = ("slots", "vram_limit", "scheduler", "stream_batch")
"""The fields of `EngineConfig` that the server has."""
_TAIL_TOKENS = 32
"""The tokens at the end of a prompt that schedulers are shown, as in an engine."""
_LARGEST_GRAPH = 2048
"""The tokens up to which prefill streaming is weighed. Clients choose the size of their graphs."""


def new_scheduler(config: EngineConfig) -> Scheduler:
    """Return a scheduler for one model. Raise InputError for one that needs a draft."""
    scheduler = config.scheduler if isinstance(config.scheduler, Scheduler) else make(config.scheduler)
    if scheduler.routers is not None:
        raise InputError(f"scheduler '{scheduler.name}' needs a draft, and drafts stay with the client")
    return scheduler


class LentExperts:
    """One model's experts on the server, with slots as far as they fit.

    The scheduler sees each graph as a step: those of prompts too, if they have few tokens. It knows no drafts
    and no costs, because the client has them.
    """

    def __init__(
        self,
        experts: _core.Experts,
        config: EngineConfig,
        client: _core.ServedClient,
        note: Callable[[str], None],
    ) -> None:
        """Attach the slots, and start the scheduler."""
        self.experts, self._config, self._client, self._note = experts, config, client, note
        self._n_experts = n_experts(experts)
        self._driver: Driver | None = None
        scheduler = new_scheduler(config)
        if scheduler.name == "none" or not self._n_experts:
            return
        self._stream_prompts()
        with client.pause():
            self._attach()
        experts.take_demand()
        if not experts.slots.n_slots:
            return
        if scheduler.sees_prompts:
            experts.set_tail_tokens(_TAIL_TOKENS)
        is_real = not any(device.shares_host_cores for device in holders(experts))
        if is_real and scheduler.lookahead != 0:
            experts.set_lookahead(scheduler.lookahead or DEFAULT_LOOKAHEAD)
        self._driver = Driver(scheduler, experts)
        self._driver.start()

    def _stream_prompts(self) -> None:
        """Set up prefill streaming. This comes before slots are attached, which leave memory for it."""
        wanted = self._config.stream_batch
        if wanted is None:
            is_slow = any(device.shares_host_cores for device in holders(self.experts))
            wanted = StreamBatch(0 if is_slow else None)
        streams = PromptStreams(self.experts, wanted, _LARGEST_GRAPH, _LARGEST_GRAPH)
        streams.update(Costs.guessed(self.experts.layers))

    def _attach(self) -> None:
        try:
            notes = attach_slots(self.experts, self._config.slots)
        except OutOfMemoryError as error:
            notes = [one_line(str(error))]
            attach_at_most(self.experts, self.experts.slots_that_fit(spares(self.experts)))
        for each in notes:
            self._note(each)

    def _attach_again(self) -> None:
        """Attach the slots that fit now. The client needed the memory of those that there were."""
        experts = self.experts
        wanted = wanted_slots(holders(experts), self._config.slots, self._n_experts)
        with self._client.pause():
            n_slots = attach_at_most(experts, min(wanted, experts.slots_that_fit(spares(experts))))
        self._note(f"slots: {n_slots} instead, for the client needed memory")

    def observe(self) -> None:
        """Show the scheduler what has been computed since the last call."""
        if self._driver is None:
            return
        if not self.experts.slots.n_slots:
            self._attach_again()
            self._driver.resized()
        demand, n_graphs = self.experts.take_demand()
        scheduler = self._driver.scheduler
        if n_graphs:
            n_used = max(layer.n_used for layer in self.experts.layers)
            n_tokens = int(demand.sum(axis=1).max()) // max(1, n_used)
            self._driver.raised(Event.VERIFY_END, demand, n_verified=max(1, n_tokens))
        elif scheduler.sees_prompts:
            self._driver.saw_prompt()

    @property
    def summary(self) -> str:
        """A line on what the model's experts did."""
        stats, layers = self.experts.stats, self.experts.layers
        n = stats["activations"]
        share = f"{stats['activations_hit'] / n:.1%} of {n:,} activations hit slots" if n else "no steps"
        streamed = f", {stats['blocks_streamed']:,} layers of prompts were streamed" * bool(
            stats["blocks_streamed"]
        )
        return (
            f"{len(layers)} layers with {self._n_experts} experts were split here: {share}, and "
            f"{stats['uploads']:,} experts were copied to slots{streamed}"
        )


class ClientPolicy:
    """The policy of one client's models. It runs on a thread of its own beside the one that serves."""

    def __init__(self, client: _core.ServedClient, config: EngineConfig, note: Callable[[str], None]) -> None:
        """Store the arguments; `note` shows the user a line."""
        self._client, self._config, self._note = client, config, note
        self._models: dict[_core.Experts, LentExperts] = {}
        self._failed: set[_core.Experts] = set()

    def run(self) -> None:
        """Follow the client's graphs until it leaves, and note what they did."""
        known = 0
        while (known := self._client.await_graph(known)) >= 0:
            for experts in self._client.models:
                if experts not in self._failed:
                    self._follow(experts)
        for each in self._models.values():
            self._note(each.summary)

    def _follow(self, experts: _core.Experts) -> None:
        try:
            if experts not in self._models:
                self._models[experts] = LentExperts(experts, self._config, self._client, self._note)
            self._models[experts].observe()
        except SpacError as error:  # The CPU goes on computing what is not in slots.
            self._failed.add(experts)
            self._note(f"the slots stay as they are: {one_line(str(error))}")
