"""The sequence of one generation in llama.cpp's loop."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spac import _core
from spac.errors import Cancelled, InputError, SpacError, one_line
from spac.machine.arrays import Int32Array
from spac.model.c_api import TokenArray

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
        self._text: _core.LoopText | None = None
        self._steps: deque[_core.SequenceStep] = deque()
        self._probabilities: tuple[Any, Any, Any] | None = None
        self._end: _Full | SpacError | None = None
        self._is_cancelled = False

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
        try:
            self._text = text = self._loop.generate(
                tokens, images=images, limit=-1 if self.limit is None else self.limit, n_unseen=n_unseen,
                n_top=self._n_top, **self._sampling
            )  # fmt: skip
        except InputError:
            if self._is_cancelled:  # by closing the engine
                raise Cancelled("cancelled") from None
            raise
        self._beginnings[text.number] = begin
        try:
            text.begin()
            while not self._steps and self._end is None:
                self._read(progress, len(tokens))
        finally:
            self._beginnings.pop(text.number, None)
        if not self._steps:
            self._raise()
        self.n_past = len(tokens)

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
        if (text := self._text) is not None:
            text.cancel()

    def _raise(self) -> None:
        """Raise the error by which the loop ended the sequence, if it did."""
        if isinstance(self._end, SpacError):
            if (fault := self._fault()) is not None:
                raise fault
            raise self._end

    def _read(self, progress: Callable[[int, int], object] | None = None, total: int = 0) -> None:
        """Wait for news of the text, and take note of them. Raise Cancelled if the sequence was cancelled.

        `progress` is told how much of a prompt of `total` tokens is read.
        """
        assert self._text is not None
        try:
            news = self._text.next()
        except SpacError as error:
            self._end = type(error)(one_line(str(error)))
            news = None
        if self._is_cancelled:
            raise Cancelled("cancelled")
        if news is None:
            return
        self._steps.extend(news.steps)
        for done, self.n_reused in news.progress:
            before, self.n_past = self.n_past, done
            if progress is not None and before < done < total:
                progress(done, total)
        if news.is_stopped:
            self._end = Cancelled("the engine is closed")
        elif news.is_over:
            self._end = _Full()
