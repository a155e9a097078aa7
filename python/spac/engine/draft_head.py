"""The choice between a draft's whole head and its short one, by their measured times.

A draft model multiplies each token's state with its head, which has a row for every token of the vocabulary.
The short head has rows for the frequent tokens and those of the text (`csrc/backend/draft_head`). It takes
less time, and a draft fails where the target's next token is one that it does not know. The target still
verifies all tokens, so its text and its distribution stay the same.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from spac import _core

BLOCK = 4
"""Steps in a row with the same head during a trial. The time of the first one does not count."""
TRIAL = 8 * BLOCK
"""Drafted steps of a trial, in which both heads run in turns, and between two choices."""
EVERY = 512
"""Drafted steps between two trials."""
CLEAR = 1.25
"""The ratio of gain to loss from which the choice changes. It changes back below the inverse."""
_KEPT = 1 - 1 / 128  # the part of counts that a step leaves


class DraftHead:
    """Switches the short head of one draft context on where it pays."""

    def __init__(self, head: _core.ShortHead) -> None:
        """Begin with a trial."""
        self._head = head
        self._times = {on: deque[float](maxlen=TRIAL) for on in (False, True)}
        self._place = 0  # drafted steps since the last trial began
        self._chosen = False
        self._noted: tuple[int, int] | None = None
        self._steps = self._tokens = self._unknown = self._drafted = self._accepted = self._seconds = 0.0

    def begin(self) -> None:
        """Note that a new prompt begins. Its tokens do not count as those of the text."""
        self._noted = None

    def observe(self, step: _core.Step) -> None:
        """Learn from a step, and choose the head of the next one."""
        self._count(step)
        if not step.n_drafted:
            return
        on, place = self._head.on, self._place
        if place < TRIAL and place % BLOCK:
            evaluated = max(step.n_drafted, len(step.confidences))
            self._times[on].append(step.draft_ns * 1e-9 / evaluated)
        self._place = place = (place + 1) % EVERY
        if place >= TRIAL and place % TRIAL == 0:
            self._chosen = self._pays()
        wanted = place // BLOCK % 2 == 1 if place < TRIAL else self._chosen
        if wanted != on:
            self._head.set_on(wanted)

    def _count(self, step: _core.Step) -> None:
        now, before = (self._head.n_noted, self._head.n_learned), self._noted
        if step.n_drafted:
            self._noted = now
        if before is None or not step.n_drafted:
            return
        new = (now[0] - before[0], now[1] - before[1], step.n_drafted, step.n_accepted,
               (step.draft_ns + step.verify_ns + step.sample_ns) * 1e-9, 1)  # fmt: skip
        old = (self._tokens, self._unknown, self._drafted, self._accepted, self._seconds, self._steps)
        self._tokens, self._unknown, self._drafted, self._accepted, self._seconds, self._steps = (
            _KEPT * a + b for a, b in zip(old, new, strict=True)
        )

    def _pays(self) -> bool:
        """Return True if the time that the short head saves is worth the tokens that it loses.

        An unknown token ends a draft: half of a step's accepted tokens are lost, in the mean.
        """
        if not self._steps or not self._tokens or not all(self._times.values()):
            return False
        saved = median(self._times[False]) - median(self._times[True])
        gain = saved * self._drafted / self._seconds
        loss = self._unknown / self._tokens * self._accepted / self._steps / 2
        return gain > loss * (1 / CLEAR if self._chosen else CLEAR) and gain > 0.0
