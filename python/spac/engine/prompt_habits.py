"""The choice among ways to evaluate prompts of similar lengths, which tries the other ways rarely."""

from __future__ import annotations

from collections.abc import Mapping

from spac.engine.prompt_times import Key, PromptTimes, Way

_GAIN = 0.98
"""The choice changes if another way takes less than this share of the time per token."""
_FAR = 4.0
"""A way whose estimated time is more than this times that of the best one is not tried."""
_CLOSE = 1.1
"""A way that was measured once is measured again at once if it took at most this times the best time."""
_CARE = 0.01
"""The share of the time of prompts that later trials may take."""
_RARELY = 8
"""The pieces between two later trials."""
_PIECE = 4
"""The largest number of small graphs that a session evaluates as one piece."""


class Habit:
    """Chooses the way of each piece of prompts of similar lengths."""

    def __init__(self) -> None:
        """Start without a choice."""
        self._kept: Key | None = None  # the key of the last choice that was no trial
        self._tried: dict[Key, int] = {}  # the number of pieces when a key was last chosen
        self._n_pieces = self._last_trial = 0
        self._spare_s = 0.0  # seconds that trials may still take

    def note(self, way: Way) -> None:
        """Take note that a piece is evaluated in this way."""
        self._n_pieces += 1
        self._tried[way.key] = self._n_pieces

    def observe(self, seconds: float) -> None:
        """Take note of a piece's time, a share of which later trials may take."""
        self._spare_s += _CARE * seconds

    def best(self, times: Mapping[Way, float], small: int) -> Way:
        """Return the fastest way by the seconds per token of each.

        It stays what it was until another one gains a little. At first, the fastest way with graphs of at
        most `small` tokens stands in for what it was.
        """
        fastest = min(times, key=times.__getitem__)
        at_first = min((way for way in times if way.size <= small), key=times.__getitem__)
        kept = next((way for way in times if way.key == self._kept), at_first)
        found = fastest if times[fastest] < _GAIN * times[kept] else kept
        self._kept = found.key
        return found

    def trial(
        self, times: Mapping[Way, float], measured: PromptTimes, best: Way, small: int, n_pending: int
    ) -> Way | None:
        """Return a way to try in place of the best one, or None.

        A small graph's way is tried if it was never measured, and again if it came close. Later trials of any
        way are rare, begin with the way that was evaluated least lately, and take a share of the time.
        """
        if not measured.count(best):
            return None
        others = [way for way in times if way.key != best.key and times[way] < _FAR * times[best]]
        for way in others:
            n, is_small = measured.count(way), way.size <= small
            if (n == 0 and is_small) or (n == 1 and times[way] < _CLOSE * times[best]):
                return way
        if self._n_pieces - self._last_trial < _RARELY:
            return None
        for way in sorted(others, key=lambda way: self._tried.get(way.key, 0)):
            lost_s = max(0.0, times[way] - times[best]) * min(n_pending, max(way.size, _PIECE * small))
            if lost_s <= self._spare_s:
                self._spare_s -= lost_s
                self._last_trial = self._n_pieces
                return way
        return None
