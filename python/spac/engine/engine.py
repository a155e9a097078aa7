"""The engine: a pair of models with slots, a scheduler and a session, and its generations."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig, Slots, VramLimit
from spac.costs.estimator import CostEstimator
from spac.engine.batch_recording import BatchRecording, StepMeter
from spac.engine.between_steps import BetweenDecodes, BetweenSteps
from spac.engine.draft_lengths import DraftLengths
from spac.engine.expert_cache import ExpertCache
from spac.engine.generation import Generation, Prompt, as_tokens
from spac.engine.loop_sequence import LoopGeneration, LoopSequence
from spac.engine.memory_budget import MemoryBudget
from spac.engine.prompt_graphs import PromptGraphs
from spac.engine.prompt_progress import PromptProgress
from spac.engine.reader import Reader
from spac.engine.run_files import RunFiles
from spac.engine.server_loop import LoopOptions, check_loop, open_loop, served
from spac.engine.session_events import Events
from spac.engine.setting import mean_expert_bytes, n_experts, setting_of
from spac.engine.single_session import SingleSession, parameters_of, seeded
from spac.errors import InputError
from spac.governor import DraftLengthController, Governor, RooflineGovernor
from spac.model.c_api import Model, TokenArray, take_notices
from spac.model.images import image_prompt
from spac.model.pair import LoadProgress, ModelPair
from spac.scheduler import Scheduler, SchedulerChoice
from spac.scheduler.driver import Driver
from spac.stats import RunStats, Setting, device_counts
from spac.stats.advice import missed_budget, unused_draft
from spac.stats.recording import Recorder


class Engine:
    """A model pair with slots, a scheduler and a session.

    It runs one generation at a time, or `EngineConfig.parallel` of them, each read by a thread of its own.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        progress: LoadProgress | None = None,
        pair: ModelPair | None = None,
        serves: LoopOptions | None = None,
    ) -> None:
        """Load the models, or take over the loaded `pair`, and start the scheduler.

        The engine owns `pair` from now on. With `serves`, it also answers requests with llama.cpp's server
        (`loop`). Raise InputError, OutOfMemoryError or SpacError if that fails.
        """
        started = perf_counter()
        self.config = config = config if serves is None else served(config, serves)
        self._last: Callable[[], Generation | None] = lambda: None
        self._last_stats: Callable[[], RunStats] | None = None
        self._reader: Reader | None = None  # the last generation's
        self._advised = self._noted_images = False
        self._beside: weakref.WeakSet[Generation] = weakref.WeakSet()
        self.steps: StepMeter | None = None
        """The counts of steps that several generations share; None if one generation runs at a time."""
        self.loop: _core.ServerLoop | None = None
        """llama.cpp's server, which runs several generations at once; None with one at a time."""
        try:
            check_loop(config)
            self._files = RunFiles(config)
        except BaseException:
            if pair is not None:
                pair.close()
            raise
        self._pair = pair if pair is not None else ModelPair(config, progress, all_rows=False)
        self.experts = self._pair.experts
        """The target's experts; None if the target runs without the split."""
        self._notes = self._pair.notes
        self.reading = PromptProgress()
        """The progress of the prompt that is being read, for other threads too."""
        self.events = Events(None)
        """The handler of the session's events; callers may add their own listeners."""
        self._expert_cache: ExpertCache | None = None
        self._lengths: DraftLengths | None = None
        self._single: SingleSession | None = None
        if serves is None and self._pair.n_sequences > 1:
            serves = LoopOptions(Path(config.target).stem)
        self.between = (BetweenSteps if serves is None else BetweenDecodes)(self._after_call)
        """The queue of work that runs between the calls of the session."""
        self.on_note: Callable[[str], object] = lambda _note: None
        """The function that receives notes which come while steps run, such as changes of the slots."""
        self._memory: MemoryBudget | None = None
        try:
            self._expert_cache = expert_cache = ExpertCache(config, self._pair, self._notes)
            self.events.after_step.append(self._learn_costs)
            self._lengths = DraftLengths(config, self._pair, expert_cache, self.events)
            if config.unused_options:
                self._notes.append(config.unused_options)
            self.events.settled = self.experts if config.deterministic else None
            self.events.beside = env.FORM.get("schedule-beside") is True
            self.events.driver = driver = expert_cache.attach(config.scheduler)
            self._memory = MemoryBudget(config, self._pair, expert_cache, self._say)
            expert_cache.update_streams()
            if expert_cache.stream_note:
                self._notes.append(expert_cache.stream_note)
            self._trace = self.experts.trace if self.experts is not None else _core.Trace()
            device = "; ".join(f"{each.name}, {each.description}" for each in self.devices) or "cpu"
            self._notes += self._files.begin(driver, expert_cache.scheduler_options, self._trace, device)
            self.events.timeline = self._files.timeline
            self._single = SingleSession(
                config, self._pair, expert_cache, self._trace, self.reading, self.events.subscribe
            )
            if serves is not None:
                self.steps = StepMeter()
                self.loop = self._open_loop(serves, self.steps)
        except BaseException:
            self.close()
            raise
        self._load_s = perf_counter() - started

    def save(self) -> None:
        """Write the timeline and the warm state, once, if the configuration names files for them.

        `close` does this too. Raise InputError if a file cannot be written.
        """
        self.events.drain()
        self.events.timeline = None
        about = {"target": Path(self.config.target).name}
        options: Mapping[str, Any] = {}
        if (expert_cache := self._expert_cache) is not None:
            about |= {"device": self._pair.device_names, "scheduler": expert_cache.scheduler_name}
            options = expert_cache.scheduler_options
        self._notes += self._files.end(self.events.driver, options, about)

    def close(self) -> None:
        """End the generations, save the files, then free everything in order.

        The engine cannot be used afterwards. A second call does nothing. Any thread may call this.
        """
        for each in list(self._beside):
            each.cancel()
        if self.loop is not None:
            self.loop.close()
        if (generation := self._generation) is not None:
            generation.cancel()
        self.between.close(self._close)

    def _close(self) -> None:
        try:
            self.save()
        finally:
            self._free()

    def _free(self) -> None:
        if (generation := self._generation) is not None:
            generation.retire()
        if self._single is not None:
            self._single.close()
        self.events.end()
        if self._expert_cache is not None:
            self._expert_cache.close()
        self._last = lambda: None
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
    def session(self) -> _core.Session | None:
        """The session, to which callers may add hooks (`session.on`).

        It is None before the first generation, and with several generations at once.
        """
        return self._single.session if self._single is not None else None

    @property
    def device(self) -> _core.DeviceInfo | None:
        """The main device, which has the draft too; None if plain llama.cpp runs on the CPU."""
        return self._pair.device

    @property
    def devices(self) -> tuple[_core.DeviceInfo, ...]:
        """The devices that share the layers; none if plain llama.cpp runs on the CPU."""
        return self._pair.devices

    @property
    def notes(self) -> list[str]:
        """The notes for the user on how this engine runs, one line each; the list may grow."""
        self._notes += take_notices()
        if not self._advised and (advice := self._advice()):
            self._advised = True
            self._notes.append(advice)
        return self._notes

    @property
    def _generation(self) -> Generation | None:
        """The last generation; None before the first, and if nobody holds it any more."""
        return self._last()

    def _advice(self) -> str:
        """Return advice after the last generation; "" for none. On a device of CPU cores, drafts get none."""
        draft, device = self._pair.draft, self.device
        governor, budget = self._draft_lengths.configured, self.config.latency_budget
        if self._last_stats is None:
            return ""
        stats = self._last_stats()
        if budget is not None and isinstance(governor, RooflineGovernor):
            first = stats.time_to_first_token_s
            if missed := missed_budget(budget, governor.plain_s, first):
                return missed
        if draft is None or device is None or device.shares_host_cores or self.experts is None:
            return ""
        slots = self.experts.slots
        lengths = stats.draft_lengths
        n_bytes = mean_expert_bytes(self.experts)
        return unused_draft(lengths, draft.n_bytes, n_bytes, slots.n_slots, self.n_experts)

    @property
    def _at_home(self) -> ExpertCache:
        assert self._expert_cache is not None  # It exists once the engine is loaded.
        return self._expert_cache

    @property
    def _draft_lengths(self) -> DraftLengths:
        assert self._lengths is not None  # It exists once the engine is loaded.
        return self._lengths

    @property
    def costs(self) -> CostEstimator | None:
        """The estimated unit times, corrected by every step; None if the target runs without the split."""
        return self._expert_cache.estimator if self._expert_cache is not None else None

    def _learn_costs(self, step: _core.Step) -> None:
        """Learn from a step of one sequence. The estimator's times of drafts are those of one."""
        session = self.session
        if step.n_verified == step.n_drafted + 1:
            self._at_home.observe(step, step.n_drafted if session is None else session.draft_length)

    @property
    def governor(self) -> Governor | None:
        """The governor, which chooses the draft length; None without speculation."""
        return self._lengths.governor if self._lengths is not None else None

    def fix_draft_length(self, n: int | None) -> None:
        """Draft n tokens a step from the next generation on; None restores the configuration's governor.

        Raise InputError unless n is from 0 to the longest draft that the engine was made for.
        """
        self._draft_lengths.fix(n)

    def controller(self, session: _core.Session) -> DraftLengthController | None:
        """Return a draft-length controller for one generation by `session`, or None without speculation."""
        return self._draft_lengths.controller(session)

    def set_scheduler(self, scheduler: str | SchedulerChoice | Scheduler) -> None:
        """Use another scheduler from the next step on.

        Resident experts stay until the new scheduler evicts them; with "none" they stay for good. Raise
        InputError if the name is unknown or the target runs without the split.
        """
        if self.experts is None:
            raise InputError(f"scheduler: {self._pair.unsplit}")
        chosen = SchedulerChoice.parse(scheduler) if isinstance(scheduler, str) else scheduler
        self.between.run(lambda: self._change_scheduler(chosen))

    def _change_scheduler(self, chosen: SchedulerChoice | Scheduler) -> None:
        self.events.drain()
        self._use(self._at_home.attach(chosen))

    def set_vram_limit(self, limit: VramLimit | str | int | float | None) -> None:
        """Change the memory of the device that spac takes at most; None takes the limit away.

        The slots shrink or grow to what fits, without reloading, and the text stays the same. Any thread may
        call this: the change is made between two steps. Raise InputError if weights and contexts need more,
        or if the target runs without the split.
        """
        self.between.run(lambda: self._budget.set_vram_limit(limit))

    def set_slots(self, slots: Slots | str | int | float) -> None:
        """Change the number of experts that the device holds, as `set_vram_limit` changes the limit.

        Raise InputError if so many do not fit; then nothing changes.
        """
        self.between.run(lambda: self._budget.set_slots(slots))

    @property
    def _budget(self) -> MemoryBudget:
        if self._memory is None or self.experts is None:
            raise InputError(f"vram_limit: {self._pair.unsplit}")
        return self._memory

    def _after_call(self) -> None:
        """Follow the device's memory, and a driver that came with the first slots."""
        if self._memory is not None and self.experts is not None:
            self._memory.look()
            if self.events.driver is not self._at_home.driver:
                self._use(self._at_home.driver)

    def _say(self, note: str) -> None:
        self._notes.append(note)
        self.on_note(note)

    def _use(self, driver: Driver | None) -> None:
        self.events.driver = driver
        if self.session is not None:
            self.events.subscribe(self.session)
        elif (loop := self.loop) is not None:
            self.between.run(lambda: self.events.subscribe(loop))

    @property
    def n_experts(self) -> int:
        """The number of the target's experts in all layers."""
        return n_experts(self.experts)

    # Generating

    @property
    def graphs(self) -> PromptGraphs | None:
        """The choice of the size of a prompt's graphs; None if it is fixed."""
        return self._at_home.graphs

    def prepare_prompt(self) -> None:
        """Wait for copies if they have to be done, and estimate anew how prompts are evaluated."""
        self.events.settle()
        self._at_home.update_streams()

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

    def tokenize(self, text: str) -> TokenArray:
        """Return the int32 tokens of `text`."""
        return self._pair.target.tokenize(text)

    @property
    def projector(self) -> _core.Projector | None:
        """The projector (`mmproj`), with which the target sees images; None without one."""
        return self._pair.projector

    def image_prompt(self, text: str, images: Sequence[bytes]) -> _core.ImagePrompt:
        """Return a prompt of text and images for `generate`.

        `images` are files in memory: JPEG, PNG, BMP, GIF and others. They stand where the text has
        `<__media__>`, or before a text that has it nowhere. Raise InputError if the target sees no images, if
        one cannot be decoded, and if the places are more or fewer than the images.
        """
        return image_prompt(self._pair.projector, text, images)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        sampling: SamplingConfig | None = None,
        recorder: Recorder | None = None,
        progress: Callable[[int, int], object] | None = None,
        chat: _core.ChatPrompt | None = None,
        reasoning_budget: int = -1,
    ) -> Generation:
        """Return an iterator over the pieces of text that continue `prompt`, with `stats` and `reason`.

        The text ends with the model's end token, a `stop` string (not part of the text), `max_tokens`, or a
        full context. A prompt with images comes from `image_prompt`. An engine has one generation at a time,
        so this call ends one that this thread reads. One that another thread reads goes on, and this call
        waits until it ends, is dropped, or is not read for a minute. With `EngineConfig.parallel`,
        generations run at the same time, each read by its own thread, and further ones wait in order. They do
        not wait for their readers, and one that is dropped leaves at once. A `recorder` records every step,
        of one generation at a time.
        `progress(n_done, n_total)` receives the number of prompt tokens done, after each graph of a long
        prompt, or 2048 tokens. `reading` estimates it in between. `chat` is the chat prompt whose text
        `prompt` is. The answer then follows its format, has at most `reasoning_budget` tokens of reasoning
        (-1: no limit), and can be parsed by `chat.read`. Raise InputError if the prompt is empty or does
        not fit.
        """
        tokens = as_tokens(self._pair.target, prompt)
        if self.loop is not None:
            if recorder is not None:
                raise InputError("the engine runs several generations at once: record it with Engine.record")
            return self._generate_beside(
                self.loop, prompt, tokens, max_tokens, stop, sampling, progress, chat, reasoning_budget
            )
        while True:
            if (reader := self._reader) is not None:
                reader.wait()

            def begin(waited_for: Reader | None = reader) -> Generation | None:
                if self._reader is not waited_for:
                    return None  # Another thread's generation came first.
                return self._begin(
                    prompt, tokens, max_tokens, stop, sampling, recorder, progress, chat, reasoning_budget
                )

            if (begun := self.between.run(begin)) is not None:
                return begun

    def _begin(
        self,
        prompt: Prompt,
        tokens: TokenArray,
        max_tokens: int | None,
        stop: Sequence[str],
        sampling: SamplingConfig | None,
        recorder: Recorder | None,
        progress: Callable[[int, int], object] | None,
        chat: _core.ChatPrompt | None,
        reasoning_budget: int,
    ) -> Generation:
        """Return a generation of the one session, while no call of it is under way."""
        if (last := self._generation) is not None:
            last.retire()
        self.prepare_prompt()
        assert self._single is not None
        session, sampling = self._single.sampling(sampling or self.config.sampling, chat, reasoning_budget)
        setting = self.setting(sampling)
        images = self._images(prompt)
        prediction_stats = self.events.begin_stats()
        self.events.n_text += 1
        generation = Generation(
            self._pair.target, session, self.experts, setting, tokens, max_tokens, stop,
            prediction_stats=prediction_stats, recorder=recorder,
            controller=self.controller(session) if images is None else None, progress=progress, images=images,
            reading=self.reading,
            preserved=frozenset(chat.preserved_tokens) if chat is not None else (), between=self.between,
        )  # fmt: skip
        if recorder is not None:
            recorder.watch(self.events, self.governor)
        self._last, self._reader = weakref.ref(generation), generation.reader
        self._last_stats = generation.stats_reader
        return generation

    def _generate_beside(
        self,
        loop: _core.ServerLoop,
        prompt: Prompt,
        tokens: TokenArray,
        max_tokens: int | None,
        stop: Sequence[str],
        sampling: SamplingConfig | None,
        progress: Callable[[int, int], object] | None,
        chat: _core.ChatPrompt | None,
        reasoning_budget: int,
    ) -> Generation:
        """Return a generation that runs beside others."""
        self.between.run(self._at_home.update_streams)
        sampling = seeded(sampling or self.config.sampling)
        sequence = LoopSequence(
            loop, {**parameters_of(sampling), "chat": chat, "reasoning_budget": reasoning_budget}, max_tokens
        )
        generation = LoopGeneration(
            self._pair.target, sequence, self.experts, self.setting(sampling), tokens, max_tokens, stop,
            prediction_stats=self.events.prediction_stats, progress=progress, images=self._images(prompt),
            preserved=frozenset(chat.preserved_tokens) if chat is not None else (),
        )  # fmt: skip
        self._last = weakref.ref(generation)  # One that its reader drops leaves at once.
        self._beside.add(generation)
        self._last_stats = generation.stats_reader
        return generation

    @property
    def batch_stats(self) -> RunStats | None:
        """The statistics of all generations since the start; None unless several run at once.

        The time of decoding is that of the steps, each of which may serve several generations.
        """
        if self.steps is None:
            return None
        experts = {} if self.experts is None else {**self.experts.stats, **device_counts(self.experts)}
        meter = replace(self.steps.meter, experts=experts, prompt_experts=experts)
        return RunStats.of(self.setting(self.config.sampling), meter)

    @contextmanager
    def record(self, path: Path | str) -> Iterator[None]:
        """Record the steps of all generations until the block ends, and write the file, for `spac.report`.

        One recording runs at a time. Raise InputError if no file can be written there, or if the engine runs
        one generation at a time. `generate` takes a recorder then.
        """
        recorder = Recorder(path, keeps_demand=False)
        if self.steps is None:
            raise InputError("the engine runs one generation at a time: give its recorder to Engine.generate")
        longest = self.config.longest_draft if self.config.draft_types else 0
        recording = BatchRecording(recorder, self.steps, longest, self.experts, self.events)
        try:
            yield
        finally:
            recorder.write(RunStats.of(self.setting(self.config.sampling), recording.end()))

    async def generate_async(
        self, prompt: Prompt, max_tokens: int | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """Yield the pieces of text of `generate`, whose arguments these are, without blocking the event loop.

        The generation is cancelled if the caller stops reading.
        """
        generation = await asyncio.to_thread(self.generate, prompt, max_tokens, **options)
        try:
            while (piece := await asyncio.to_thread(next, generation, None)) is not None:
                yield piece
        finally:
            generation.cancel()

    def _open_loop(self, options: LoopOptions, steps: StepMeter) -> _core.ServerLoop:
        """Start llama.cpp's server. Raise InputError if it cannot do what the configuration asks for."""
        assert isinstance(self.between, BetweenDecodes)
        return open_loop(
            self.config, options, self._pair, self.experts, self._trace, self.events, self.between.gate,
            self._after_call, lambda: self.governor, self._draft_lengths.of_several, self.graphs, steps,
            self._say,
        )  # fmt: skip

    def _images(self, prompt: Prompt) -> _core.ImagePrompt | None:
        """Return a prompt that has images, or None. Note that nothing is drafted then."""
        if not isinstance(prompt, _core.ImagePrompt) or not prompt.n_images:
            return None
        self.note_images()
        return prompt

    def note_images(self) -> None:
        """Add a note that nothing is drafted while there are images, once and if anything drafts."""
        if self.config.draft_types and not self._noted_images:
            self._notes.append("nothing is drafted while a conversation has images: a draft cannot see them")
        self._noted_images = True

    def session_with(self, **sampling: Any) -> _core.Session:
        """Return the session, which uses this sampling from its next prefill on.

        Open a session if there is none. Parameters and errors are those of `_core.Session.set_sampling`.
        Raise InputError also if several generations run at once.
        """
        if self.loop is not None:
            raise InputError("this needs the context for one generation: leave out --parallel")
        assert self._single is not None
        single = self._single
        return self.between.run(lambda: single.with_parameters(sampling))

    def setting(self, sampling: SamplingConfig) -> Setting:
        """Return the setting that the statistics of a generation with this sampling show."""
        return setting_of(self.config, self._pair, self._at_home, self._draft_lengths, sampling, self._load_s)
