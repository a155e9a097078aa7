"""The sequence of one generation in llama.cpp's loop."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from spac import _core
from spac.errors import Cancelled, InputError, OutOfMemoryError, SpacError, one_line
from spac.machine.arrays import Int32Array
from spac.model.c_api import TokenArray

T = TypeVar("T")
Beginnings = dict[int, Callable[[], object]]
"""The functions that a loop calls when it begins a sequence, by the number of its request."""
_OWN = (
    "activations", "activations_hit", "activations_loaded", "distinct", "distinct_hit", "misses_cpu",
    "misses_loaded",
)  # fmt: skip


@dataclass(frozen=True)
class _Full:
    """The step that ends a sequence whose context is full, with the fields of `_core.SequenceStep`."""

    tokens: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    n_drafted = n_accepted = n_steps = draft_ns = verify_ns = sample_ns = 0
    seconds = 0.0
    reason = "length"


class LoopSequence:
    """One sequence of a loop, for one reader. `cancel` may be called by any thread."""

    def __init__(
        self,
        loop: _core.ServerLoop,
        sampling: Mapping[str, Any],
        limit: int | None = None,
        n_top: int = -1,
        beginnings: Beginnings | None = None,
        fault: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        """Prepare a sequence, which begins with `prefill`.

        `sampling` has the parameters of `ServerLoop.generate`. With `n_top` from 0, probabilities are kept.
        `beginnings` is where the loop looks for the function that `prefill` is given for the beginning.
        `fault` returns what a callback of the loop has raised, which is raised in place of the loop's error.
        """
        self._loop, self._sampling, self._n_top = loop, sampling, n_top
        self._beginnings, self._fault = beginnings if beginnings is not None else {}, fault
        self.limit = limit
        """The number of tokens that are wanted; None for no limit."""
        self.n_past = 0
        """The number of the prompt's tokens in the target's memory."""
        self.n_reused = 0
        """The number of tokens of the prompt that did not have to be evaluated."""
        self.own_counts = Counter(dict.fromkeys(_OWN, 0))
        """The counts of its own tokens' experts, in the steps that its reader has taken."""
        self._answer: _core.LoopResponse | None = None
        self._steps: deque[_core.SequenceStep] = deque()
        self._probabilities: tuple[Any, Any, Any] | None = None
        self._end: _Full | SpacError | None = None
        self._is_cancelled = self._calls = False

    def prefill(
        self,
        tokens: TokenArray,
        progress: Callable[[int, int], object] | None = None,
        *,
        n_unseen: int = 0,
        images: _core.ImagePrompt | None = None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until the prompt is read, in its turn. The loop calls `begin` before it reads the prompt.

        Raise InputError if the prompt or the sampling is refused, Cancelled, and other errors of the loop.
        """
        body = {
            "prompt": tokens.tolist() if images is None else _with_images(images), "stream": True,
            "n_predict": -1 if self.limit is None else self.limit, "return_progress": True,
            "sse_ping_interval": -1,
        }  # fmt: skip
        try:
            self._answer = answer = self._loop.generate(
                json.dumps(body).encode(), n_unseen=n_unseen, n_top=self._n_top, **self._sampling
            )
        except InputError:
            if self._is_cancelled:  # by closing the engine
                raise Cancelled("cancelled") from None
            raise
        self._beginnings[answer.number] = begin
        try:
            self._call(answer.run)
            self._read_prompt(len(tokens), progress)
        finally:
            self._beginnings.pop(answer.number, None)

    def _read_prompt(self, total: int, progress: Callable[[int, int], object] | None) -> None:
        """Wait until the prompt is read, and take note of its progress."""
        answer = self._answer
        assert answer is not None
        if not answer.is_stream:
            raise _error_of(json.loads(answer.body)["error"]) if answer.body else Cancelled("cancelled")
        while not self._steps and self._end is None:
            part = self._read()
            if (done := part.get("prompt_progress")) is not None:
                before, self.n_past = self.n_past, done["processed"]
                self.n_reused = done["cache"]
                if progress is not None and before < self.n_past < total:
                    progress(self.n_past, total)
        self._raise()
        self.n_past = total

    def step(self) -> _core.SequenceStep | _Full:
        """Return the next step's result, and wait for it. Raise Cancelled and other errors of the loop."""
        while not self._steps and self._end is None:
            self._read()
        if not self._steps:
            self._raise()
            assert isinstance(self._end, _Full)
            return self._end
        step = self._steps.popleft()
        self._probabilities = step.probabilities
        self.own_counts.update(step.experts)
        return step

    def finish(self) -> None:
        """Wait until the loop has ended the sequence by itself. Raise its errors."""
        while self._end is None:
            self._read()
        self._raise()

    def probabilities(self, _n_top: int) -> tuple[Any, Any, Any]:
        """Return the tokens' probabilities, `top_ids` [n, n_top] and `top` [n, n_top] of the last step."""
        if self._probabilities is None:
            raise InputError("no probabilities were asked for with this sequence")
        return self._probabilities

    def cancel(self) -> None:
        """End the sequence. A reader that waits gets Cancelled."""
        self._is_cancelled = True
        if (answer := self._answer) is not None:
            answer.cancel()
            if not self._calls:  # Otherwise the reader closes it.
                answer.close()

    def _raise(self) -> None:
        """Raise the error by which the loop ended the sequence, if it did."""
        if isinstance(self._end, SpacError):
            if (fault := self._fault()) is not None:
                raise fault
            if self._answer is not None:
                self._answer.raise_fault()
            raise self._end

    def _call(self, call: Callable[[], T]) -> T:
        """Call a function of the answer. Raise Cancelled if the sequence was cancelled."""
        assert self._answer is not None
        self._calls = True
        try:
            if not self._is_cancelled:
                result = call()
        finally:
            self._calls = False
        if self._is_cancelled:
            self._answer.close()
            raise Cancelled("cancelled")
        return result

    def _read(self) -> dict[str, Any]:
        """Wait for the next part of the answer, take the steps that were made, and return the part."""
        assert self._answer is not None
        data = self._call(self._answer.next)
        self._steps.extend(self._answer.steps())
        if data is None:
            self._end = Cancelled("the engine is closed")
            return {}
        part: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
        if "error" in part:
            self._end = _error_of(part["error"])
        elif part["stop"]:
            self._end = _Full()
        return part


def _with_images(prompt: _core.ImagePrompt) -> dict[str, Any]:
    """Return a prompt with images in the form of llama.cpp's server. Raise InputError if it is no text."""
    try:
        text = prompt.text.decode()
    except UnicodeDecodeError:
        raise InputError("a prompt with images must be text in UTF-8") from None
    return {"prompt_string": text, "multimodal_data": [b64encode(each).decode() for each in prompt.files]}


def _error_of(error: Mapping[str, Any]) -> SpacError:
    """Return the error that llama.cpp's server answers with."""
    code, message = error["code"], one_line(error["message"])
    if code == 503:
        return Cancelled("the engine is closed")
    if code < 500:
        return InputError(message)
    if "needs more memory than" in message:
        return OutOfMemoryError(message)
    return SpacError(message)
