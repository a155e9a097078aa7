"""One generation, which is the loop over steps from a prompt to pieces of text."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from spac import _core
from spac.engine.batch_recording import Counts, read_counts
from spac.engine.loop_sequence import LoopSequence
from spac.engine.prompt_progress import PromptProgress
from spac.engine.text_stream import TextStream
from spac.errors import Cancelled, InputError
from spac.machine.device_memory import in_use
from spac.model.c_api import Model, TokenArray
from spac.stats import Meter, RunStats, Setting
from spac.stats.scheduler_time import SchedulerTime


class Generation(Iterator[str]):
    """An iterator over the pieces of text of one generation.

    `Engine.generate` makes it. The work begins with the first piece that is asked for, and does not wait for
    the reader afterwards. A caller may read `stats` at any time and call `cancel` from any thread. If several
    threads read, each piece of text goes to one of them. A generation that is dropped ends.
    """

    _n_unseen = 0  # number of first prompt tokens that penalties ignore

    def __init__(
        self,
        model: Model,
        sequence: LoopSequence,
        experts: _core.Experts | None,
        setting: Setting,
        prompt: TokenArray,
        max_tokens: int | None,
        stop: Sequence[str],
        *,
        scheduler_time: SchedulerTime | None = None,
        begin: Callable[[], object] = lambda: None,
        end: Callable[[], object] = lambda: None,
        lengths: Counter[int] | None = None,
        counts: Counts | None = None,
        progress: Callable[[int, int], object] | None = None,
        reading: PromptProgress | None = None,
        preserved: Collection[int] = (),
        images: _core.ImagePrompt | None = None,
    ) -> None:
        """Prepare a generation; `Engine.generate` describes the other parameters and the errors.

        `scheduler_time` is what the engine's events count, and `lengths` what its governor counts. `counts`
        has the experts' counters of each step if no other generation runs. The loop calls `begin` before it
        reads the prompt. `end` is called once, at the end or when the generation is dropped. `reading`
        follows the prompt. `preserved` has the control tokens that are part of the text. `images` has those
        of the prompt.
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
        self._model, self._experts, self._sequence, self._setting = model, experts, sequence, setting
        self._meter = Meter(
            prompt_tokens=int(prompt.size),
            scheduler_time=scheduler_time or SchedulerTime(),
            lengths=lengths if lengths is not None else Counter(),
        )
        self._limit, self._begin, self._progress, self._counts = max_tokens, begin, progress, counts
        self.reading = reading or PromptProgress()
        """The progress of the prompt, for other threads too."""

        self._text, self._preserved, self._images = TextStream(stop), preserved, images
        self._reading = threading.RLock()  # held by the thread that reads
        self.thread = threading.get_ident()
        """The thread that read last."""
        self._cancelled = False
        self._running = False  # True while a call of the sequence runs, which cancel() then ends
        self._unread: TokenArray | None = prompt
        self._over = False
        self._finish = weakref.finalize(self, _finish, sequence, end)  # It runs once.

    def __next__(self) -> str:
        # A generator would refer to this object, which would then live on until a collection.
        with self._reading:
            self.thread = threading.get_ident()
            while not self._over:
                if text := self._work():
                    return text
        raise StopIteration

    def cancel(self) -> None:
        """Stop after the step that runs. The text generated so far remains. Any thread may call this."""
        self._cancelled = True
        if not self._running:
            self._meter.reason = self._meter.reason or "cancelled"
        self._sequence.cancel()

    def stop(self) -> None:
        """End the text here, as a stop string does. The thread that reads calls this between two pieces."""
        self._meter.reason = self._meter.reason or "stop"
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
        """Wait for the prompt or for the next step, or end the text, and return the new text."""
        try:
            if self._unread is not None:
                prompt, self._unread = self._unread, None
                self._prefill(prompt)
                return ""
            if not self._meter.reason:
                return self._step()
            if not (self._text.stopped or self._cancelled or self._limit == 0):
                self._sequence.finish()  # An error of the last step comes after its tokens.
            self._meter.scheduler_time.check()
        except Cancelled:
            self._meter.reason = "cancelled"
        except BaseException:
            self._end()
            raise
        self._end()
        return self._text.finish()

    def _end(self) -> None:
        """End the iteration and leave the loop. A second call does nothing."""
        self._over = True
        self._finish()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Mark a call of the sequence as running. Raise Cancelled if `cancel` was called before."""
        self._running = True
        try:
            if self._cancelled:
                raise Cancelled("cancelled")
            yield
        finally:
            self._running = False

    def _prefill(self, prompt: TokenArray) -> None:
        meter, total = self._meter, int(prompt.size)
        if self._limit == 0:
            meter.reason = "length"
            return
        started = time.perf_counter()
        if self._counts is None:
            self._counts_before = self._read_counts()
        self.reading.begin(total)
        try:
            if self._progress is not None:
                self._progress(0, total)
            with self._call():
                self._sequence.prefill(
                    prompt, self._report, n_unseen=self._n_unseen, images=self._images, begin=self._begin
                )
        finally:
            reading = self.reading.now()
            self.reading.end()
            meter.prefill_s = meter.first_token_s = time.perf_counter() - started
            meter.prefilled_tokens = max(0, self._sequence.n_past - self._sequence.n_reused)
        if self._counts is not None:
            self._counts_before = self._read_counts()  # those of the beginning
        if self._progress is not None and reading is not None and reading.done < total:
            self._progress(total, total)

    def _report(self, done: int, total: int) -> None:
        self.reading.skip(self._sequence.n_reused)
        self.reading.report(done, total)
        if self._progress is not None:
            self._progress(done, total)

    def _step(self) -> str:
        """Take the result of one draft and its verification, and return the new text."""
        meter = self._meter
        with self._call():
            step = self._sequence.step()
        is_prompt = not (step.n_steps or meter.steps or meter.first_tokens)
        text = "".join(self._accept(int(token)) for token in step.tokens)
        if len(step.tokens):
            self._count(is_prompt=is_prompt)
        meter.decode_s += step.seconds
        meter.steps += step.n_steps
        if step.n_steps:
            meter.step_tokens += len(step.tokens)
        elif is_prompt:
            meter.first_tokens = len(step.tokens)
        meter.drafted += step.n_drafted
        meter.accepted += step.n_accepted
        meter.draft_s += step.draft_ns / 1e9
        meter.verify_s += step.verify_ns / 1e9
        meter.sample_s += step.sample_ns / 1e9
        meter.reason = meter.reason or step.reason
        return text

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
        """Return the counters at the end of the step that was taken. Those of experts are its own."""
        if self._experts is None:
            return {}
        counts = self._counts.popleft() if self._counts else read_counts(self._experts)
        return {**counts, **self._sequence.own_counts}

    def _count(self, *, is_prompt: bool) -> None:
        """Count what a step has changed, or the prompt, whose end is the first one."""
        if self._experts is None:
            return
        now = self._read_counts()
        counts = {name: value - self._counts_before[name] for name, value in now.items()}
        if is_prompt:
            self._counts_before, self._meter.prompt_experts = now, counts
        else:
            self._meter.experts = counts
        self._meter.resident = self._experts.slots.n_resident


def _finish(sequence: LoopSequence, end: Callable[[], object]) -> None:
    """Let a sequence leave the loop."""
    sequence.cancel()
    end()


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
    if tokens.size and not 0 <= (least := tokens.min()) <= (most := tokens.max()) < model.n_tokens:
        wrong, last = least if least < 0 else most, model.n_tokens - 1
        raise InputError(f"token {wrong} of the prompt does not exist: the vocabulary has tokens 0 to {last}")
    return tokens.astype(np.int32)
