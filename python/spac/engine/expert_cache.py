"""The expert cache of an engine.

It has the slots, the scheduler that fills them, the costs that the scheduler uses, and prefill streaming.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spac import _core, env
from spac.config import EngineConfig
from spac.config.engine import DEFAULT_LOOKAHEAD
from spac.config.values import StreamBatch
from spac.costs import Costs
from spac.costs.estimator import CostEstimator
from spac.engine.costs_in_use import CostsInUse, TokenTime
from spac.engine.prefill_streaming import PromptStreams
from spac.engine.prompt_graphs import PromptGraphs, largest_graph, may_grow
from spac.engine.rehearsal import rehearse, rehearses
from spac.engine.slots import (
    attach_at_most,
    attach_copies,
    attach_draft,
    attach_slots,
    beside_graphs,
    check_foretells,
    spares,
)
from spac.engine.target_routes import TargetRoutes, watch_draft
from spac.model.pair import ModelPair
from spac.scheduler import Event, Scheduler, SchedulerChoice, make
from spac.scheduler.driver import Driver
from spac.scheduler.logistic import LogisticScheduler
from spac.stats.scheduler_time import given_options

_PAGED_MARGIN = 0.4
"""The `margin` of `logistic` if the experts exceed the host memory (bench/README.md)."""


class ExpertCache:
    """The expert cache of one engine's pair, which appends notes for the user to `notes`."""

    def __init__(self, config: EngineConfig, pair: ModelPair, notes: list[str]) -> None:
        """Load the costs and set up prefill streaming.

        No expert of the target is resident until `attach`. Raise InputError or SpacError if that fails.
        """
        self._config, self._pair, self._notes = config, pair, notes
        self._experts, self._device = pair.experts, pair.placement.device
        self.scheduler_name, self.scheduler_options = "none", dict[str, Any]()
        self.costs: CostsInUse | None = None
        """The costs, corrected by every step; None if the target runs without the split."""
        self._token_time = TokenTime(pair) if pair.experts is None else None
        self.driver: Driver | None = None
        """The scheduler's driver; None if no expert can be resident."""
        self._attached = False  # True once the slots of the configuration were attached
        self._chosen: SchedulerChoice | Scheduler | None = None
        self._layers_ahead: int | None = None  # of the scheduler: `Scheduler.lookahead`
        self._streams: PromptStreams | None = None
        self._routes: TargetRoutes | None = None
        self.graphs: PromptGraphs | None = None
        """The choice of the size of a prompt's graphs; None if it is fixed."""
        if self._device is not None:
            notes += attach_draft(pair.draft_experts, self._device)
        notes += attach_copies(config, pair)
        if self._experts is not None:
            self._experts.set_early_rows(self._device is not None and env.FORM.get("early-rows") is True)
            self.costs = CostsInUse(pair, config.longest_draft + 1)
            notes += self.costs.notes
        try:
            self._stream_prompts()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Save the learned costs, and end what watches the draft."""
        self._leave_draft()
        if self.costs is not None:
            self.costs.close()
        if self._token_time is not None:
            self._token_time.close()
        self.costs = self._token_time = None

    def observe(self, step: _core.Step, n_asked: int) -> None:
        """Learn costs from a step that was asked for a draft of `n_asked` tokens."""
        if self.costs is not None:
            self.costs.observe(step, n_asked)
        if self._token_time is not None:
            self._token_time.observe(step)

    @property
    def estimator(self) -> CostEstimator | None:
        """The estimator of the costs; None if the target runs without the split."""
        return self.costs.estimator if self.costs is not None else None

    # Prompts

    def _stream_prompts(self) -> None:
        """Set up prefill streaming, unless the target runs without the split.

        This comes before slots are attached, because the slots leave device memory for it.
        """
        if self._experts is None or self._device is None:
            return
        wanted = self._config.stream_batch
        if wanted is None:
            wanted = StreamBatch(0 if self._device.shares_host_cores else None)
        context, config = self._pair.target_context, self._config
        forgets = self._pair.target.has_window and not config.swa_full
        is_auto = config.ubatch.tokens is None and not config.deterministic
        chosen = is_auto and may_grow(context, forgets=forgets)
        largest = largest_graph(context) if chosen else context.graph_tokens
        self._experts.set_staged_tokens(context.graph_tokens)
        self._streams = PromptStreams(self._experts, wanted, context.graph_tokens, largest)
        self._streams.update(self._costs_of_prompts)
        if chosen:
            self.graphs = PromptGraphs(context, self._pair.placement.devices, self._streams, self._notes)

    def update_streams(self) -> None:
        """Update prefill streaming before a prompt with the costs learned since the last prompt."""
        if self._streams is not None:
            self._streams.update(self._costs_of_prompts)
        if self.graphs is not None:
            self.graphs.measure()

    @property
    def stream_batch(self) -> int:
        """The fewest tokens of a batch that uses prefill streaming; 0 if none does."""
        return self._streams.tokens if self._streams is not None else 0

    @property
    def stream_note(self) -> str:
        """A note for the user on prefill streaming; "" if there is none."""
        return self._streams.note if self._streams is not None else ""

    @property
    def _costs_of_prompts(self) -> Costs:
        if self.costs is not None and not self._config.deterministic:
            return self.costs.estimator.costs
        return Costs.guessed(self._experts.layers if self._experts is not None else [])

    # Slots and the scheduler

    def attach(self, chosen: SchedulerChoice | Scheduler) -> Driver | None:
        """Attach the slots, unless they are attached, and start the scheduler.

        Return the scheduler's driver, or None if no expert can be resident.
        """
        self.driver, self._chosen = None, chosen
        self._leave_draft()
        if self._experts is None:
            return None
        scheduler = chosen if isinstance(chosen, Scheduler) else self._make(chosen)
        routes = None
        if scheduler.routers == "draft":
            check_foretells(scheduler.name, self._config, self._experts, self._pair.draft_experts)
        elif scheduler.routers == "target":
            routes = watch_draft(scheduler.name, self._config, self._pair)
        self.scheduler_name, self._layers_ahead = scheduler.name, scheduler.lookahead
        self.scheduler_options = given_options(
            scheduler, {} if isinstance(chosen, Scheduler) else chosen.options
        )
        if scheduler.name == "none":
            self._experts.set_lookahead(0)
            return None
        if not self._experts.slots.n_slots and not self._attached:  # Otherwise the slots keep their experts.
            self._attached = True
            if rehearses(self._pair):
                kernels = rehearse(self._pair)
                if self.graphs is not None:
                    self.graphs.memory.kernel_bytes = kernels
            self._notes += attach_slots(
                self._experts, self._config.slots, self._pair.draft_experts, self.graphs
            )
        self._experts.set_lookahead(self.lookahead)
        if self._experts.slots.n_slots == 0:
            return None
        self._experts.set_miss(self._config.miss, scheduler.by_recency)  # before the scheduler's first plan
        # A plan that depends on measured times differs from run to run.
        costs = None if self._config.deterministic else self.estimator
        self.driver = Driver(scheduler, self._experts, costs, routes)
        self._routes = routes
        self.driver.start()
        # A plan that comes while a token is drafted makes the residency depend on timing.
        if routes is not None and Event.DRAFT_LAYER in scheduler.events and not self._config.deterministic:
            routes.listen(self.driver.layer_drafted)
        return self.driver

    def resize(self, n_slots: int) -> None:
        """Replace the slots by `n_slots` slots, or fewer if a device refuses so many.

        They leave the margin of each device free, and with `auto` also memory for graphs of prompts. The
        slots are empty at first, and the reconciler copies the experts of the plan. Call this between the
        steps of the loop.
        """
        assert self._experts is not None
        free = None
        if self._config.slots.is_auto:
            free = beside_graphs(self._experts, self.graphs, spares(self._experts))
        attach_at_most(self._experts, n_slots, free)
        self._experts.set_lookahead(self.lookahead)
        if self.driver is not None:
            self.driver.resized()
        elif n_slots and self._chosen is not None:
            self.attach(self._chosen)
        if self._streams is not None:
            self._streams.update(self._costs_of_prompts)

    def _make(self, choice: SchedulerChoice) -> Scheduler:
        """Return the scheduler that the user chose.

        If experts exceed the host memory, an evicted expert may have to be read from the disk again. A copy
        then has to bring more, so the default of `margin` is higher.
        """
        paged = self._pair.placement.paged
        if paged and not self._config.deterministic and choice.name == LogisticScheduler.name:
            choice = replace(choice, options={"margin": _PAGED_MARGIN, **choice.options})
        return make(choice)

    @property
    def lookahead(self) -> int:
        """The number of layers ahead for which experts are loaded while a step runs; 0 for none."""
        if self.scheduler_name == "none" or self._experts is None or not self._experts.slots.n_slots:
            return 0
        if self._config.lookahead is not None:
            return self._config.lookahead
        if self._config.deterministic or self._layers_ahead == 0:
            return 0
        if self._device is None or self._device.shares_host_cores or env.FORM.get("safe"):
            return 0
        if self._pair.placement.paged:  # A wrong prediction also costs a read from the disk.
            return 0
        return DEFAULT_LOOKAHEAD if self._layers_ahead is None else self._layers_ahead

    def _leave_draft(self) -> None:
        """Show the draft's states to no routers any more."""
        if self._routes is not None:
            self._routes.close()
        self._routes = None
