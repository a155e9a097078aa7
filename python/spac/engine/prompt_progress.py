"""The progress of the prompt that is being read, and the time that is left.

The loop reports after each batch of a prompt, which may be one graph of thousands of tokens. Between two
reports, progress is estimated from the times of earlier chunks. A chunk's time per token depends on its size,
so times are kept by powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

LONG_S = 2.0
"""Seconds. The remaining time is told for prompts that take longer."""
_WEIGHT = 0.5  # of a new time against the mean of those before


@dataclass(frozen=True)
class Reading:
    """An estimate of a prompt's progress."""

    done: int
    """Tokens that are evaluated, with those that were there already."""
    total: int
    elapsed_s: float
    left_s: float | None
    """Seconds until the prompt is read; None before any time is known."""

    @property
    def is_long(self) -> bool:
        """True if the prompt takes longer than `LONG_S`."""
        return self.elapsed_s + (self.left_s or 0.0) > LONG_S

    @property
    def left(self) -> str:
        """A phrase about the remaining time, for the end of a sentence; "" if there is nothing to tell."""
        if self.left_s is None or not self.is_long:
            return ""
        return f", about {max(1, round(self.left_s))} s left"


@dataclass(frozen=True)
class _State:
    """The last report. It is replaced as a whole, so that other threads may read it."""

    done: int
    total: int
    chunk: int  # the tokens of the chunk that is being evaluated, as far as they are known
    began: float
    at: float


class PromptProgress:
    """Follows the prompts of an engine. The engine's thread reports, and any thread may ask."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """Start without any known time. `clock` returns seconds."""
        self._clock = clock
        self._per_token: dict[int, float] = {}  # seconds, by the size's number of bits
        self._guess = 0.0  # seconds per token, before any are measured
        self._state: _State | None = None

    def begin(self, total: int) -> None:
        """Begin with a prompt of `total` tokens."""
        now = self._clock()
        self._state = _State(0, total, total, now, now)

    def expect(self, chunk: int, chunk_s: float = 0.0) -> None:
        """Take note that the next `chunk` tokens are evaluated now.

        `chunk_s` is a guess of their seconds, which is used until any time is measured; 0 for none.
        """
        if not self._per_token and chunk_s > 0:
            self._guess = chunk_s / chunk
        if (state := self._state) is not None:
            self._state = _State(state.done, state.total, chunk, state.began, self._clock())

    def skip(self, done: int) -> None:
        """Take note that the first `done` tokens did not have to be evaluated."""
        if (state := self._state) is not None and state.done < done:
            self._state = _State(done, state.total, state.chunk, state.began, state.at)

    def report(self, done: int, total: int) -> None:
        """Take note that `done` of `total` tokens are evaluated."""
        if (state := self._state) is None:
            return
        now, n = self._clock(), done - state.done
        if n > 0:
            known, time = self._per_token.get(n.bit_length()), (now - state.at) / n
            mean = time if known is None else known + _WEIGHT * (time - known)
            self._per_token[n.bit_length()] = mean
        self._state = _State(done, total, min(n, state.chunk) if n > 0 else state.chunk, state.began, now)

    def end(self) -> None:
        """End the prompt, read or not."""
        self._state = None

    def now(self) -> Reading | None:
        """Return the present progress; None if no prompt is being read."""
        if (state := self._state) is None:
            return None
        now = self._clock()
        rest = state.total - state.done
        chunk = min(state.chunk, rest)
        time = self._time(chunk)
        if time is None:
            return Reading(state.done, state.total, now - state.began, None)
        share = min(0.99, (now - state.at) / time) if time > 0 else 0.0
        left = (1 - share) * time + (rest - chunk) / max(1, chunk) * time
        return Reading(state.done + int(share * chunk), state.total, now - state.began, left)

    def _time(self, n_tokens: int) -> float | None:
        """Return the seconds of a chunk, by the known size that is nearest to it."""
        if not self._per_token:
            return n_tokens * self._guess if self._guess else None
        bits = min(self._per_token, key=lambda each: abs(each - n_tokens.bit_length()))
        return n_tokens * self._per_token[bits]
