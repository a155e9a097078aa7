"""T_draft, learned once for all that read it: the governor, the balancer and the costs that are kept."""

from __future__ import annotations

_STEPS = 64.0  # drafts over which an observation loses two thirds of its weight
_TRUSTED = 4.0  # observations after which a much longer draft counts as interrupted
_REACH = 2.0  # factor from the expected time up to which an interrupted draft counts


class DraftTime:
    """Estimates the time of a draft in seconds, as a fixed time and a time per token.

    The first draft counts at once, because the governor needs a time then. If all drafts had one length, the
    time per token stays as it was; at first, times are in proportion to the length.
    """

    def __init__(self, base_s: float = 0.0, token_s: float = 0.0) -> None:
        """Set measured start values. Without a time per token, the first draft sets them."""
        self.base_s, self.token_s = base_s, token_s
        self.known = token_s > 0
        """True if the times were measured, in this run or before it."""
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._follows = False  # True if the step before asked for a draft

    def seconds(self, n_tokens: int) -> float:
        """Return the expected seconds of a draft of `n_tokens`, which may have stopped at 0."""
        return self.base_s + self.token_s * n_tokens

    def observe(self, n_asked: int, n_drafted: int, seconds: float) -> None:
        """Learn from a step. It asked for `n_asked` tokens; 0 means no draft.

        A draft after steps without one counts only if nothing is known. It takes longer, because the draft
        model first evaluates the text of these steps.
        """
        follows, self._follows = self._follows, n_asked > 0
        if not n_asked or seconds <= 0 or (self.known and not follows):
            return
        if not self.known:
            self.base_s, self.token_s = (0.0, seconds / n_drafted) if n_drafted else (seconds, 0.0)
            self.known = True
        elif self._weight > _TRUSTED:
            seconds = min(seconds, _REACH * self.seconds(n_drafted))
        keep = 1 - 1 / _STEPS
        self._weight = self._weight * keep + 1
        self._x = self._x * keep + n_drafted
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + n_drafted * n_drafted
        self._xy = self._xy * keep + n_drafted * seconds
        self._fit()

    def _fit(self) -> None:
        """Fit both times by least squares, drawn to the last time per token. Neither is below 0."""
        x, y = self._x / self._weight, self._y / self._weight
        spread = self._xx - self._weight * x * x
        token_s = (self._xy - self._weight * x * y + self.token_s) / (spread + 1.0)
        if x > 0:
            token_s = min(max(0.0, token_s), y / x)
        self.token_s, self.base_s = token_s, max(0.0, y - token_s * x)  # rounding may leave less than 0
