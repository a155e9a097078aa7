"""One generation, which is the loop over steps from a prompt to pieces of text."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from spac import _core
from spac.engine.between_steps import BetweenSteps
from spac.engine.prompt_progress import PromptProgress
from spac.engine.reader import Reader
from spac.engine.text_stream import TextStream
from spac.errors import Cancelled, InputError
from spac.governor import DraftLengthController
from spac.machine.device_memory import in_use
from spac.model.c_api import Model, TokenArray
from spac.stats import Meter, RunStats, Setting, device_counts
from spac.stats.prediction import PredictionStats

if TYPE_CHECKING:
    from spac.engine.loop_sequence import LoopSequence
    from spac.stats.recording import Recorder


class Generation(Iterator[str]):
    """An iterator over the pieces of text of one generation.

    `Engine.generate` makes it. Iterating does the work. A caller may read `stats` at any time and call
    `cancel` from any thread. A generation stops where its reader stops. If several threads read, each piece
    of text goes to one of them.
    """

    _n_unseen = 0  # number of first prompt tokens that penalties ignore

    def __init__(
        self,
        model: Model,
        session: _core.Session | LoopSequence,
        experts: _core.Experts | None,
        setting: Setting,
        prompt: TokenArray,
        max_tokens: int | None,
        stop: Sequence[str],
        *,
        prediction_stats: PredictionStats | None = None,
        recorder: Recorder | None = None,
        controller: DraftLengthController | None = None,
        progress: Callable[[int, int], object] | None = None,
        reading: PromptProgress | None = None,
        preserved: Collection[int] = (),
        between: BetweenSteps | None = None,
        images: _core.ImagePrompt | None = None,
    ) -> None:
        """Prepare a generation; `Engine.generate` describes the other parameters and the errors.

        `prediction_stats` is what the session's events count. `controller` is the draft-length controller, or
        None. `reading` follows the prompt. `preserved` has the control tokens that are part of the text.
        `between` runs other threads' work between the session's calls. `images` has those of the prompt.
        """
        if prompt.size == 0:
            raise InputError("the prompt is empty: give at least one token of text")
        if prompt.size > setting.context:
            raise InputError(
                f"the prompt has {prompt.size} tokens and the context holds {setting.context}: raise --ctx"
            )
        if max_tokens is not None and max_tokens < 0:
            raise InputError(f"max_tokens must be at least 0, not {max_tokens}")
        self.tokens: list[int] = []
        """The tokens generated so far, without the one that ended the text."""
        self._model, self._experts = model, experts
        self._session: Any = session  # Steps of both kinds have the same fields.
        self._setting, self._meter = (
            setting,
            Meter(
                prompt_tokens=int(prompt.size),
                prediction_stats=prediction_stats or PredictionStats(),
                controller=controller,
            ),
        )
        self._limit, self._controller = max_tokens, controller
        self._recorder, self._progress = recorder, progress
        self.reading = reading or PromptProgress()
        """The progress of the prompt, for other threads too."""

        self._text, self._preserved, self._images = TextStream(stop), preserved, images
        self._between: Callable[[], AbstractContextManager[None]] = (
            between.call if between is not None else nullcontext
        )
        self._reading = threading.RLock()  # held by the thread that reads
        self._cancelled = False
        self._running = False  # True during a call of the session, which cancel() then stops
        self._unread: TokenArray | None = prompt
        self._over = False
        self.reader = Reader()
        """The reader, for other threads that wait for the session."""
        weakref.finalize(self, self.reader.ended.set)
        # A generation that its reader drops ends its recording too.
        self._end_recording = weakref.finalize(self, recorder.end) if recorder is not None else None

    def __next__(self) -> str:
        # A generator would refer to this object, which would then live on until a collection.
        with self._reading:
            self.reader.begin()
            try:
                while not self._over:
                    if text := self._work():
                        return text
            finally:
                self.reader.pause()
        raise StopIteration

    def cancel(self) -> None:
        """Stop as soon as the running graph ends.

        The text generated so far remains. Any thread may call this.
        """
        self._cancelled = True
        self.reader.ended.set()  # Other threads need not wait until it is read to its end.
        if self._running:
            self._session.cancel()
        elif not self._meter.reason:
            self._meter.reason = "cancelled"

    def retire(self) -> None:
        """End this generation, because the engine needs the session for another one.

        The caller makes sure that no call of the session is under way (`BetweenSteps.run`).
        """
        self._meter.reason = self._meter.reason or "cancelled"
        self._end()

    @property
    def reason(self) -> str:
        """The reason for the end: "stop" (end token or stop string), "length", "cancelled"; "" before it."""
        return self._meter.reason

    @property
    def ended_by_context(self) -> bool:
        """True if the text ended because the context is full."""
        unlimited = self._limit is None or self._meter.generated_tokens < self._limit
        return self.reason == "length" and unlimited

    @property
    def stats(self) -> RunStats:
        """The statistics so far."""
        return self.stats_reader()

    @property
    def stats_reader(self) -> Callable[[], RunStats]:
        """A function that returns `stats`, also when the generation is dropped."""
        setting, meter = self._setting, self._meter
        return lambda: RunStats.of(setting.with_memory(in_use), meter)

    def _work(self) -> str:
        """Read the prompt, run one step or end the text, and return the new text."""
        try:
            if self._unread is not None:
                prompt, self._unread = self._unread, None
                self._prefill(prompt)
                return ""
            if not self._meter.reason:
                return self._step()
            self._meter.prediction_stats.check()
        except Cancelled:
            self._meter.reason = "cancelled"
        except BaseException:
            self._end()
            raise
        self._end()
        return self._text.finish()

    def _end(self) -> None:
        """End the iteration and the recording. A second call does nothing."""
        if self._end_recording is not None:
            self._end_recording()  # A second call does nothing.
        self._over = True
        self.reader.ended.set()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Mark a call of the session as running, so that cancel() never stops a later generation's call.

        Raise Cancelled if `cancel` was called before, or if the generation was retired.
        """
        with self._between():
            self._running = True
            try:
                if self._cancelled or self._over:
                    raise Cancelled("cancelled")
                yield
            finally:
                self._running = False

    def _prefill(self, prompt: TokenArray) -> None:
        meter = self._meter
        if self._limit == 0:
            meter.reason = "length"
            return
        started = time.perf_counter()
        # The session and its counters are read within the call. Later, another thread may use or close them.
        with self._call():
            before = self._read_counts()
            try:
                self._prefill_session(prompt)
            finally:
                meter.prefill_s = time.perf_counter() - started
                meter.prefilled_tokens = max(0, self._session.n_past - self._session.n_reused)
            self._counts = self._counts_before = now = self._read_counts()
            meter.prompt_experts = {name: value - before[name] for name, value in now.items()}
            if self._controller is not None:
                self._controller.begin(meter.prefill_s)
            if self._recorder is not None:
                self._recorder.begin(self._session.draft_max, self._experts, self._counts)

    def _prefill_session(self, prompt: TokenArray) -> None:
        self.reading.begin(int(prompt.size) - 1)
        try:
            if self._progress is not None:
                self._progress(0, int(prompt.size) - 1)
            self._session.prefill(prompt, self._report, n_unseen=self._n_unseen, images=self._images)
        except Cancelled:
            if self._cancelled:
                raise
            # The session saw a cancel() of the previous generation only now.
            self._session.prefill(prompt, self._report, n_unseen=self._n_unseen, images=self._images)
        finally:
            reading = self.reading.now()
            self.reading.end()
        if self._progress is not None and reading is not None and reading.done < reading.total:
            self._progress(reading.total, reading.total)  # the memory held all of it

    def _report(self, done: int, total: int) -> None:
        self.reading.report(done, total)
        if self._progress is not None:
            self._progress(done, total)

    def _step(self) -> str:
        """Run one draft and its verification, and return the new text.

        The measured time leaves out the time that the reader of the pieces takes.
        """
        meter = self._meter
        started = time.perf_counter()
        with self._call():
            step = self._make_step() if self._controller is None else self._controller.step(self._room)
            self._count()
            draft_length = self._session.draft_length if self._recorder is not None else 0
        text = "".join(self._accept(int(token)) for token in step.tokens)
        elapsed = time.perf_counter() - started
        if not meter.steps:
            meter.first_token_s = meter.prefill_s + elapsed
        meter.decode_s += self._seconds_of(step, elapsed)
        meter.steps += step.n_steps
        meter.step_tokens += len(step.tokens)
        meter.drafted += step.n_drafted
        meter.accepted += step.n_accepted
        meter.draft_s += step.draft_ns / 1e9
        meter.verify_s += step.verify_ns / 1e9
        meter.sample_s += step.sample_ns / 1e9
        meter.reason = meter.reason or step.reason
        if self._recorder is not None and not self._over:
            self._recorder.step(step, int(elapsed * 1e9), self._counts, draft_length)
        return text

    def _make_step(self) -> Any:
        return self._session.step()

    def _seconds_of(self, step: Any, elapsed: float) -> float:
        """Return the seconds that a step took. A batch knows them, because a step may wait for its reader."""
        seconds: float = getattr(step, "seconds", elapsed)
        return seconds

    @property
    def _room(self) -> int | None:
        """The number of tokens until `max_tokens`; None without a limit."""
        return None if self._limit is None else self._limit - self._meter.generated_tokens

    def _accept(self, token: int) -> str:
        """Return the text that a token completes, and set the reason if the token is the last one."""
        meter = self._meter
        if meter.reason:
            return ""
        if self._model.is_end(token):
            meter.reason = "stop"
            return ""
        self.tokens.append(token)
        meter.generated_tokens += 1
        text = self._text.push(self._model.piece(token, special=token in self._preserved))
        if self._text.stopped:
            meter.reason = "stop"
        elif self._limit is not None and meter.generated_tokens >= self._limit:
            meter.reason = "length"
        return text

    def _read_counts(self) -> dict[str, int]:
        """Return the mechanism's counters. Those of experts are its own, of several sequences."""
        if self._experts is None:
            return {}
        own = getattr(self._session, "own_counts", {})
        of_devices = device_counts(self._experts) if self._setting.devices else {}
        return {**self._experts.stats, **of_devices, **own}

    def _count(self) -> None:
        if self._experts is None:
            return
        self._counts = now = self._read_counts()
        self._meter.experts = {name: value - self._counts_before[name] for name, value in now.items()}
        self._meter.resident = self._experts.slots.n_resident


Prompt = str | Sequence[int] | TokenArray | _core.ImagePrompt
"""A prompt: text, tokens, or what `Engine.image_prompt` returns."""


def as_tokens(model: Model, prompt: Prompt) -> TokenArray:
    """Return the int32 tokens of a prompt. Raise InputError if it is none."""
    if isinstance(prompt, _core.ImagePrompt):
        return prompt.tokens
    if isinstance(prompt, str):
        return model.tokenize(prompt)
    tokens = np.asarray(prompt)
    if tokens.size and (tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer)):
        raise InputError("a prompt is text or a sequence of token numbers")
    return tokens.astype(np.int32)
