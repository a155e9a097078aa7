"""The engine: generations and chats on a runtime."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from spac import _core
from spac.config import SamplingConfig
from spac.engine.batch_recording import BatchRecording, Counts, read_counts
from spac.engine.chat import Chat
from spac.engine.chat_format import ChatFormat, Delta
from spac.engine.chat_messages import has_images, with_markers
from spac.engine.generation import Generation, Prompt, as_tokens
from spac.engine.loop_sequence import LoopSequence
from spac.engine.runtime import Runtime
from spac.engine.server_loop import parameters_of, seeded
from spac.engine.setting import mean_expert_bytes
from spac.errors import InputError
from spac.governor import RooflineGovernor
from spac.model.c_api import TokenArray, take_notices
from spac.model.images import image_prompt
from spac.stats import RunStats
from spac.stats.advice import missed_budget, unused_draft
from spac.stats.recording import Recorder


class Engine(Runtime):
    """A model pair with slots, a scheduler and the loop of llama.cpp's server.

    It runs one generation at a time, or `EngineConfig.parallel` of them, each read by a thread of its own.
    """

    _last: Callable[[], Generation | None] = staticmethod(lambda: None)
    _last_stats: Callable[[], RunStats] | None = None
    _advised = False

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
        governor, budget = self._lengths.configured, self.config.latency_budget
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
            return {"scheduler_time": self.events.scheduler_time}
        time, lengths, counts = self.events.new_time(), Counter[int](), Counts()
        recordings: list[BatchRecording] = []

        def begin() -> None:
            self.events.scheduler_time, self._governor.chosen = time, lengths
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
            "scheduler_time": time, "lengths": lengths, "counts": counts, "begin": begin, "end": end,
            "reading": self.reading,
        }  # fmt: skip

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
        return BatchRecording(
            recorder, self.steps, longest, self.experts, self.events, self.governor, self._trace
        )

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


async def _without_blocking(begin: Callable[[], Generation | Chat]) -> AsyncIterator[Any]:
    reading = await asyncio.to_thread(begin)
    try:
        while (part := await asyncio.to_thread(next, reading, None)) is not None:
            yield part
    finally:
        reading.cancel()
