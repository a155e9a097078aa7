"""The runtime of an engine: a pair of models with slots, a scheduler and llama.cpp's loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spac import _core
from spac.config import EngineConfig, SamplingConfig, Slots, VramLimit
from spac.costs.estimator import CostEstimator
from spac.engine.batch_recording import StepMeter
from spac.engine.draft_lengths import DraftLengths
from spac.engine.events import Events
from spac.engine.expert_cache import ExpertCache
from spac.engine.loop_sequence import Beginnings
from spac.engine.loop_work import LoopWork
from spac.engine.memory_budget import MemoryBudget
from spac.engine.own_drafts import keep_choice, with_own_drafts
from spac.engine.pauses import Pauses
from spac.engine.prompt_graphs import PromptGraphs
from spac.engine.prompt_progress import PromptProgress
from spac.engine.run_files import RunFiles
from spac.engine.server_loop import LoopOptions, check_loop, open_loop, served
from spac.engine.setting import n_experts, setting_of
from spac.errors import InputError, one_line
from spac.governor import Governor
from spac.model.c_api import Model
from spac.model.devices import schedules_beside
from spac.model.gguf.check import check_model
from spac.model.pair import LoadProgress, ModelPair
from spac.scheduler import Scheduler, SchedulerChoice
from spac.scheduler.driver import Driver
from spac.stats import Setting

if TYPE_CHECKING:
    from spac.engine.generation import Generation


class Runtime:
    """Loads models, and runs the loop with slots, a scheduler and a governor. It makes no texts itself."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        progress: LoadProgress | None = None,
        pair: ModelPair | None = None,
        serves: LoopOptions | None = None,
    ) -> None:
        """Load the models, or take over the loaded `pair`, and start the scheduler.

        The engine owns `pair` from now on. `serves` has the options of the server for `loop`. Raise
        InputError, OutOfMemoryError or SpacError if that fails.
        """
        started = perf_counter()
        self.config = config = config if serves is None else served(config, serves)
        self._running: weakref.WeakSet[Generation] = weakref.WeakSet()
        with ExitStack() as undo:
            if pair is not None:
                undo.callback(pair.close)
            check_loop(config)
            self._files = RunFiles(config)
            if pair is None:
                notes: list[str] = []
                info = check_model(Path(config.target), "target", config.override_kv)
                self.config = config = with_own_drafts(config, info, notes)
                pair = ModelPair(config, progress, all_rows=False, info=info)
                undo.callback(pair.close)
                pair.notes += notes
            self._pair, self._notes = pair, pair.notes
            self.experts = pair.experts
            """The target's experts; None if the target runs without the split."""
            self.steps = StepMeter(self.experts)
            """The counts of the steps of all generations."""
            self.reading = PromptProgress()
            """The progress of the prompt that is being read, for other threads too."""
            self.events = Events(None)
            """The handler of the loop's events; callers may add their own listeners."""
            self.work = LoopWork(self._after_call)
            """The queue of work that runs while the loop does not compute."""
            self.on_note: Callable[[str], object] = lambda _note: None
            """The function that receives notes which come while steps run, such as changes of the slots."""
            self._expert_cache = ExpertCache(config, pair, self._notes)
            undo.callback(self._expert_cache.close)
            undo.callback(self.events.end)
            self._lengths = DraftLengths(config, pair, self._expert_cache, self.events)
            self._attach(config)
            self._memory = MemoryBudget(config, pair, self._expert_cache, self._say)
            self._expert_cache.update_streams()
            if self._expert_cache.stream_note:
                self._notes.append(self._expert_cache.stream_note)
            self._trace = self.experts.trace if self.experts is not None else _core.Trace()
            self._pauses, self._beginnings = Pauses(), Beginnings()
            self._governor = self._lengths.of_steps()
            options = serves or LoopOptions(Path(config.target).stem, template=_no_template)
            self.loop = open_loop(
                config, options, pair, self.experts, self._trace, self.events, self.work.lock,
                self._after_call, self._governor,
                self._choose_graph if self.graphs is not None else None, self.steps, self._say,
                self._make_room, self._prepare, self._beginnings, self._pauses,
            )  # fmt: skip
            """The loop of llama.cpp's server, to which callers may add hooks (`on`)."""
            undo.callback(self.loop.close)
            device = "; ".join(f"{each.name}, {each.description}" for each in self.devices) or "cpu"
            self._notes += self._files.begin(self.events.driver, self._expert_cache.scheduler_options, device)
            undo.pop_all()
        self._load_s = perf_counter() - started

    def _attach(self, config: EngineConfig) -> None:
        """Attach the slots, and connect the scheduler with the loop's events."""
        self.events.after_step.append(self._learn_costs)
        if config.unused_options:
            self._notes.append(config.unused_options)
        self.events.settled = self.experts if config.deterministic else None
        place = self._pair.placement
        self.events.beside = schedules_beside(place.devices, place.threads)
        self.events.driver = self._expert_cache.attach(config.scheduler)

    def save(self) -> None:
        """Write the warm state, once, if the configuration names a file for it.

        `close` does this too. Raise InputError if the file cannot be written.
        """
        self.events.drain()
        self._notes += self._files.end(self.events.driver, self._expert_cache.scheduler_options)

    def close(self) -> None:
        """End the generations, save the files, then free everything in order.

        The engine cannot be used afterwards. A second call does nothing. Any thread may call this. Raise
        InputError in a callback of the loop, which cannot wait for its own end.
        """
        if not self.work.is_home:
            return
        if self.work.lock.is_mine:
            raise InputError("the engine cannot be closed in a callback of its own loop: close it afterwards")
        for each in list(self._running):
            each.cancel()
        self.loop.close()
        self.work.close(self._close)

    def _close(self) -> None:
        try:
            self.save()
        finally:
            keep_choice(self.config, self._pair.placement.info, self._lengths.configured)
            self.events.end()
            self._expert_cache.close()
            self.experts = None
            self.events = Events(None)
            self._pair.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if _type is not None:  # The exception says more than a file that cannot be written.
            with suppress(InputError):
                self.save()
        self.close()

    @property
    def device(self) -> _core.DeviceInfo | None:
        """The main device, which has the draft too; None if plain llama.cpp runs on the CPU."""
        return self._pair.placement.device

    @property
    def devices(self) -> tuple[_core.DeviceInfo, ...]:
        """The devices that share the layers; none if plain llama.cpp runs on the CPU."""
        return self._pair.placement.devices

    @property
    def target(self) -> Model:
        """The target model, which has the vocabulary and the chat template."""
        return self._pair.target

    @property
    def context(self) -> int:
        """The number of tokens that a generation may have, with its prompt."""
        return self._pair.sequence_context

    @property
    def n_sequences(self) -> int:
        """The number of generations that the contexts have places for."""
        return self._pair.n_sequences

    @property
    def n_experts(self) -> int:
        """The number of the target's experts in all layers."""
        return n_experts(self.experts)

    @property
    def graphs(self) -> PromptGraphs | None:
        """The choice of the size of a prompt's graphs; None if it is fixed."""
        return self._expert_cache.graphs

    def _choose_graph(self, n_pending: int, n_failed: int) -> int:
        """Return the tokens of the next graph of a prompt, of which `n_pending` are evaluated now."""
        graphs = self.graphs
        assert graphs is not None
        size = graphs.choose(n_pending, n_failed)
        self.reading.expect(n_pending, graphs.graph_s if size > graphs.small else 0.0)
        return size

    def prepare_prompt(self) -> None:
        """Wait for copies if they have to be done, and estimate anew how prompts are evaluated."""
        self.events.settle()
        self._expert_cache.update_streams()

    @property
    def costs(self) -> CostEstimator | None:
        """The estimated unit times, corrected by every step; None if the target runs without the split."""
        return self._expert_cache.estimator

    def _learn_costs(self, step: _core.Step) -> None:
        """Learn from a step of one sequence. The estimator's times of drafts are those of one."""
        self._pauses.step((step.draft_ns + step.verify_ns) * 1e-9)
        if step.n_verified == step.n_drafted + 1 and not self._pauses.settling:
            self._expert_cache.observe(step, step.n_drafted)

    @property
    def governor(self) -> Governor | None:
        """The governor, which chooses the draft length; None without speculation."""
        return self._lengths.governor

    def fix_draft_length(self, n: int | None) -> None:
        """Draft n tokens a step from the next generation on; None restores the configuration's governor.

        Raise InputError unless n is from 0 to the longest draft that the engine was made for.
        """
        self._lengths.fix(n)

    def set_scheduler(self, scheduler: str | SchedulerChoice | Scheduler) -> None:
        """Use another scheduler from the next step on.

        Resident experts stay until the new scheduler evicts them; with "none" they stay for good. Raise
        InputError if the name is unknown or the target runs without the split.
        """
        if self.experts is None:
            raise InputError(f"scheduler: {self._pair.placement.unsplit}")
        chosen = SchedulerChoice.parse(scheduler) if isinstance(scheduler, str) else scheduler
        self.work.run(lambda: self._change_scheduler(chosen))

    def _change_scheduler(self, chosen: SchedulerChoice | Scheduler) -> None:
        self.events.drain()
        self._use(self._expert_cache.attach(chosen))

    def set_vram_limit(self, limit: VramLimit | str | int | float | None) -> None:
        """Change the memory of the device that spac takes at most; None takes the limit away.

        The slots shrink or grow to what fits, without reloading, and the text stays the same. Any thread may
        call this: the change is made between two steps. Raise InputError if weights and contexts need more,
        or if the target runs without the split.
        """
        self.work.run(lambda: self._budget.set_vram_limit(limit))

    def set_slots(self, slots: Slots | str | int | float) -> None:
        """Change the number of experts that the device holds, as `set_vram_limit` changes the limit.

        Raise InputError if so many do not fit; then nothing changes.
        """
        self.work.run(lambda: self._budget.set_slots(slots))

    @property
    def _budget(self) -> MemoryBudget:
        if self.experts is None:
            raise InputError(f"vram_limit: {self._pair.placement.unsplit}")
        return self._memory

    def _make_room(self) -> bool:
        """Give memory of slots to kernels that have lacked it; the loop calls this within a decode."""
        try:
            self.events.drain()
            return self._memory.make_room()
        except Exception as error:  # the loop cannot take it
            self._say(one_line(str(error)))
            return False

    def _after_call(self) -> None:
        """Follow the device's memory, and a driver that came with the first slots."""
        if self.experts is not None:
            self._memory.look()
            if self.events.driver is not self._expert_cache.driver:
                self._use(self._expert_cache.driver)

    def _say(self, note: str) -> None:
        self._notes.append(note)
        self.on_note(note)

    def _use(self, driver: Driver | None) -> None:
        self.events.driver = driver
        self.work.run(lambda: self.events.subscribe(self.loop))

    def _prepare(self) -> None:
        """Prepare for a prompt that begins."""
        self.events.n_text, self.events.fault = self.events.n_text + 1, None
        self.work.run(self.prepare_prompt)

    def setting(self, sampling: SamplingConfig) -> Setting:
        """Return the setting that the statistics of a generation with this sampling show."""
        return setting_of(self.config, self._pair, self._expert_cache, self._lengths, sampling, self._load_s)


def _no_template(_target: Model) -> tuple[str, str]:
    """Return a chat template in place of the target's, which may be broken. Own prompts need none."""
    return "{% for message in messages %}{{ message.content }}{% endfor %}", ""
