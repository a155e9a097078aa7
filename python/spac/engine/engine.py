"""The engine: a pair of models with slots, a scheduler and llama.cpp's loop, and its generations."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig, Slots, VramLimit
from spac.costs.estimator import CostEstimator
from spac.engine.batch_recording import BatchRecording, Counts, StepMeter, read_counts
from spac.engine.between_steps import BetweenSteps
from spac.engine.chat import Chat
from spac.engine.chat_format import ChatFormat, Delta
from spac.engine.chat_messages import has_images, with_markers
from spac.engine.draft_lengths import DraftLengths
from spac.engine.events import Events
from spac.engine.expert_cache import ExpertCache
from spac.engine.generation import Generation, Prompt, as_tokens
from spac.engine.loop_sequence import Beginnings, LoopSequence
from spac.engine.memory_budget import MemoryBudget
from spac.engine.pauses import Pauses
from spac.engine.prompt_graphs import PromptGraphs
from spac.engine.prompt_progress import PromptProgress
from spac.engine.run_files import RunFiles
from spac.engine.server_loop import (
    LoopOptions,
    check_loop,
    open_loop,
    parameters_of,
    seeded,
    served,
)
from spac.engine.setting import mean_expert_bytes, n_experts, setting_of
from spac.engine.trials import Trial, Trials
from spac.errors import InputError, one_line
from spac.governor import ChosenLengths, Governor, RooflineGovernor
from spac.model.c_api import Model, TokenArray, take_notices
from spac.model.images import image_prompt
from spac.model.pair import LoadProgress, ModelPair
from spac.scheduler import Scheduler, SchedulerChoice
from spac.scheduler.driver import Driver
from spac.stats import RunStats, Setting
from spac.stats.advice import missed_budget, unused_draft
from spac.stats.recording import Recorder


class Engine:
    """A model pair with slots, a scheduler and the loop of llama.cpp's server.

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

        The engine owns `pair` from now on. `serves` has the options of the server for `loop`. Raise
        InputError, OutOfMemoryError or SpacError if that fails.
        """
        started = perf_counter()
        self.config = config = config if serves is None else served(config, serves)
        self._last: Callable[[], Generation | None] = lambda: None
        self._last_stats: Callable[[], RunStats] | None = None
        self._advised = False
        self._beginnings: Beginnings = {}
        self._running: weakref.WeakSet[Generation] = weakref.WeakSet()
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
        self.steps = StepMeter(self.experts)
        """The counts of the steps of all generations."""
        self._notes = self._pair.notes
        self._pauses = Pauses()
        self.reading = PromptProgress()
        """The progress of the prompt that is being read, for other threads too."""
        self.events = Events(None)
        """The handler of the loop's events; callers may add their own listeners."""
        self._expert_cache: ExpertCache | None = None
        self._lengths: DraftLengths | None = None
        self._loop: _core.ServerLoop | None = None
        self.between = BetweenSteps(self._after_call)
        """The queue of work that runs while the loop does not compute."""
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
            if (beside := env.FORM.get("schedule-beside")) is not False:
                self.events.beside = Trial(beside)
            self.events.driver = driver = expert_cache.attach(config.scheduler)
            self._memory = MemoryBudget(config, self._pair, expert_cache, self._say)
            expert_cache.update_streams()
            if expert_cache.stream_note:
                self._notes.append(expert_cache.stream_note)
            self._trace = self.experts.trace if self.experts is not None else _core.Trace()
            self._governor = self._draft_lengths.of_steps()
            options = serves or LoopOptions(Path(config.target).stem, template=_no_template)
            self._loop = open_loop(
                config, options, self._pair, self.experts, self._trace, self.events, self.between.gate,
                self._after_call, self._governor,
                self._choose_graph if self.graphs is not None else None, self.steps, self._say,
                self._make_room, self._prepare, self._beginnings,
                Trials(self.events.beside, expert_cache.early_rows()), self._pauses,
            )  # fmt: skip
            device = "; ".join(f"{each.name}, {each.description}" for each in self.devices) or "cpu"
            self._notes += self._files.begin(driver, expert_cache.scheduler_options, self._trace, device)
            self.events.timeline = self._files.timeline
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
            about |= {"device": self._pair.placement.device_names, "scheduler": expert_cache.scheduler_name}
            options = expert_cache.scheduler_options
        self._notes += self._files.end(self.events.driver, options, about)

    def close(self) -> None:
        """End the generations, save the files, then free everything in order.

        The engine cannot be used afterwards. A second call does nothing. Any thread may call this. Raise
        InputError in a callback of the loop, which cannot wait for its own end.
        """
        if not self.between.is_home:
            return
        if self.between.gate.is_mine:
            raise InputError("the engine cannot be closed in a callback of its own loop: close it afterwards")
        for each in list(self._running):
            each.cancel()
        if self._loop is not None:
            self._loop.close()
        self.between.close(self._close)

    def _close(self) -> None:
        try:
            self.save()
        finally:
            self._free()

    def _free(self) -> None:
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
    def loop(self) -> _core.ServerLoop:
        """The loop of llama.cpp's server, to which callers may add hooks (`on`)."""
        assert self._loop is not None  # It exists once the engine is loaded.
        return self._loop

    @property
    def device(self) -> _core.DeviceInfo | None:
        """The main device, which has the draft too; None if plain llama.cpp runs on the CPU."""
        return self._pair.placement.device

    @property
    def devices(self) -> tuple[_core.DeviceInfo, ...]:
        """The devices that share the layers; none if plain llama.cpp runs on the CPU."""
        return self._pair.placement.devices

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
        self._pauses.step((step.draft_ns + step.verify_ns) * 1e-9)
        if step.n_verified == step.n_drafted + 1 and not self._pauses.settling:
            self._at_home.observe(step, step.n_drafted)

    @property
    def governor(self) -> Governor | None:
        """The governor, which chooses the draft length; None without speculation."""
        return self._lengths.governor if self._lengths is not None else None

    def fix_draft_length(self, n: int | None) -> None:
        """Draft n tokens a step from the next generation on; None restores the configuration's governor.

        Raise InputError unless n is from 0 to the longest draft that the engine was made for.
        """
        self._draft_lengths.fix(n)

    def set_scheduler(self, scheduler: str | SchedulerChoice | Scheduler) -> None:
        """Use another scheduler from the next step on.

        Resident experts stay until the new scheduler evicts them; with "none" they stay for good. Raise
        InputError if the name is unknown or the target runs without the split.
        """
        if self.experts is None:
            raise InputError(f"scheduler: {self._pair.placement.unsplit}")
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
            raise InputError(f"vram_limit: {self._pair.placement.unsplit}")
        return self._memory

    def _make_room(self) -> bool:
        """Give memory of slots to kernels that have lacked it; the loop calls this within a decode."""
        try:
            self.events.drain()
            return self._memory is not None and self._memory.make_room()
        except Exception as error:  # the loop cannot take it
            self._say(one_line(str(error)))
            return False

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
        if (loop := self._loop) is not None:
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
        so this call ends one that this thread reads. One that another thread reads goes on, and this one
        waits for its end. With `EngineConfig.parallel`, generations run at the same time, each read by its
        own thread, and further ones wait in order. They do not wait for their readers, and one that is
        dropped leaves at once. A `recorder` records every step, of one generation at a time.
        `progress(n_done, n_total)` receives the number of prompt tokens done, after each graph of a long
        prompt, or 2048 tokens. `reading` estimates it in between. `chat` is the chat prompt whose text
        `prompt` is. The answer then follows its format, has at most `reasoning_budget` tokens of reasoning
        (-1: no limit), and can be parsed by `chat.read`. Raise InputError if the prompt is empty or does
        not fit.
        """
        tokens = as_tokens(self._pair.target, prompt)
        if (last := self._generation) is not None and self._is_mine(last):
            last.cancel()
        sampling = seeded(sampling or self.config.sampling)
        images = prompt if isinstance(prompt, _core.ImagePrompt) and prompt.n_images else None
        sequence = self.sequence(
            {**parameters_of(sampling), "chat": chat, "reasoning_budget": reasoning_budget}, max_tokens
        )
        generation = Generation(
            self._pair.target, sequence, self.experts, self.setting(sampling), tokens, max_tokens, stop,
            progress=progress, images=images, **self.watched(recorder),
            preserved=frozenset(chat.preserved_tokens) if chat is not None else (),
        )  # fmt: skip
        self.holds(generation)
        return generation

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        sampling: SamplingConfig | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        json_schema: Mapping[str, Any] | None = None,
        thinking: bool = True,
        reasoning_budget: int = -1,
        variables: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Return an iterator over the additions to the answer to `messages`, with `message` and `cancel`.

        Prompt and answer follow the format of the model's family, by llama.cpp's own templates and parsers. A
        model without a template gets a plain one. `messages`, `tools` and `tool_choice` ("auto", "none",
        "required") are OpenAI's. Images are data: addresses. `stop` strings count in the answer's content,
        not in its reasoning. `ChatFormat.prompt` describes `json_schema`, `thinking` and `variables`,
        `generate` the others. Raise InputError if the template refuses the messages, and if the prompt does
        not fit.
        """
        chat = self._chat_format
        prompt, tokens = self.chat_prompt(
            chat, messages, tools=tools, tool_choice=tool_choice if tools else "none",
            json_schema=json_schema, thinking=thinking and reasoning_budget != 0, variables=variables,
        )  # fmt: skip
        generation = self.generate(
            tokens, max_tokens, stop=(*chat.stop, *prompt.stops), sampling=sampling, chat=prompt,
            reasoning_budget=reasoning_budget,
        )  # fmt: skip
        return Chat(generation, chat.answer(prompt, stop))

    @cached_property
    def _chat_format(self) -> ChatFormat:
        return ChatFormat(self.target)

    def chat_prompt(
        self, chat: ChatFormat, messages: Sequence[Mapping[str, Any]], **asked: Any
    ) -> tuple[_core.ChatPrompt, TokenArray | _core.ImagePrompt]:
        """Return the prompt of messages, which may have images, and what of it is evaluated.

        `asked` are the other arguments of `ChatFormat.prompt`. Raise InputError as `chat` does.
        """
        images: list[bytes] = []
        if has_images(messages):
            marker = self.projector.marker if self.projector is not None else None
            messages, images = with_markers(messages, marker, fetches=False)
        prompt = chat.prompt(messages, **asked)
        text = prompt.text
        return prompt, self.image_prompt(text, images) if images else self.tokenize(text)

    def _is_mine(self, last: Generation) -> bool:
        """Return True if a new generation of this thread ends the `last` one."""
        return self.n_sequences == 1 and last.thread == threading.get_ident()

    def sequence(
        self, sampling: Mapping[str, Any], limit: int | None = None, n_top: int = -1
    ) -> LoopSequence:
        """Return a sequence of the loop; `LoopSequence` describes the arguments."""
        return LoopSequence(self.loop, sampling, limit, n_top, self._beginnings, lambda: self.events.fault)

    def watched(self, recorder: Recorder | None = None) -> dict[str, Any]:
        """Return the arguments of a `Generation` by which the engine counts and records its steps.

        Raise InputError if a `recorder` is given and generations run at once.
        """
        if self.n_sequences > 1:
            if recorder is not None:
                raise InputError("the engine runs several generations at once: record it with Engine.record")
            return {"prediction_stats": self.events.prediction_stats}
        stats, lengths, counts = self.events.new_stats(), ChosenLengths(), Counts()
        recordings: list[BatchRecording] = []

        def begin() -> None:
            self.events.prediction_stats, self._governor.chosen = stats, lengths
            self.steps.counts = counts
            counts.append(read_counts(self.experts))
            if recorder is not None:
                recordings.append(self._recording(recorder))

        def end() -> None:
            if self.steps.counts is counts:
                self.steps.counts = None
            for each in recordings:
                each.end()

        return {
            "prediction_stats": stats, "lengths": lengths, "counts": counts, "begin": begin, "end": end,
            "reading": self.reading,
        }  # fmt: skip

    def _prepare(self) -> None:
        """Prepare for a prompt that begins."""
        self.events.n_text, self.events.fault = self.events.n_text + 1, None
        self.between.run(self.prepare_prompt)

    def holds(self, generation: Generation) -> None:
        """Note that this generation runs."""
        self._running.add(generation)
        self._last = weakref.ref(generation)  # One that its reader drops leaves at once.
        self._last_stats = generation.stats_reader

    def forget(self) -> None:
        """Wait until no generation runs, and forget what the target's context and the draft's hold.

        The caller may use the contexts from then on, until the next generation begins. Any thread may call
        this, but not a callback of the loop.
        """
        answer = self.loop.begin("forget", b"", {})
        answer.run()
        if answer.status != 200:
            raise InputError("the engine is closed")

    @property
    def batch_stats(self) -> RunStats:
        """The statistics of all generations since the start.

        The time of decoding is that of the steps, each of which may serve several generations.
        """
        experts = read_counts(self.experts)
        meter = replace(self.steps.meter, experts=experts, prompt_experts=experts)
        return RunStats.of(self.setting(self.config.sampling), meter)

    @contextmanager
    def record(self, path: Path | str) -> Iterator[None]:
        """Record the steps of all generations until the block ends, and write the file, for `spac.report`.

        One recording runs at a time. Raise InputError if no file can be written there.
        """
        recorder = Recorder(path, keeps_demand=False)
        recording = self._recording(recorder)
        try:
            yield
        finally:
            recorder.write(RunStats.of(self.setting(self.config.sampling), recording.end()))

    def _recording(self, recorder: Recorder) -> BatchRecording:
        longest = self.config.longest_draft if self.config.draft_types else 0
        return BatchRecording(recorder, self.steps, longest, self.experts, self.events, self.governor)

    def generate_async(
        self, prompt: Prompt, max_tokens: int | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """Yield the pieces of text of `generate`, whose arguments these are, without blocking the event loop.

        The generation is cancelled if the caller stops reading.
        """
        return _without_blocking(partial(self.generate, prompt, max_tokens, **options))

    def chat_async(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int | None = None, **options: Any
    ) -> AsyncIterator[Delta]:
        """Yield the additions of `chat`, whose arguments these are, as `generate_async` yields text."""
        return _without_blocking(partial(self.chat, messages, max_tokens, **options))

    def setting(self, sampling: SamplingConfig) -> Setting:
        """Return the setting that the statistics of a generation with this sampling show."""
        return setting_of(self.config, self._pair, self._at_home, self._draft_lengths, sampling, self._load_s)


async def _without_blocking(begin: Callable[[], Generation | Chat]) -> AsyncIterator[Any]:
    reading = await asyncio.to_thread(begin)
    try:
        while (part := await asyncio.to_thread(next, reading, None)) is not None:
            yield part
    finally:
        reading.cancel()


def _no_template(_target: Model) -> tuple[str, str]:
    """Return a chat template in place of the target's, which may be broken. Own prompts need none."""
    return "{% for message in messages %}{{ message.content }}{% endfor %}", ""
