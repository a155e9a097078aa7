"""The draft lengths of several sequences that are verified in one batch, as pure functions.

    Θ(k) = Σ_s tokens_s(k_s) / (T_draft(k) + T_verify(S + Σ_s n_s(k_s)))

S is the number of sequences, k_s the draft length of sequence s, n_s(k_s) the expected number of its drafted
tokens. For one sequence this is the roofline of `model`. The j-th token of a draft is accepted with the
probability Π_{i≤j} p_i, given that it was drafted. This falls with j. So the tokens of all drafts, sorted by
that probability, are the greedy order: each next token gains most per token of the batch. Θ is computed after
every token of the order, and its maximum wins. The order is also tried with shorter limits of the length,
because a draft model evaluates as many small batches as the longest draft has tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import Float64Array, Int32Array


@dataclass(frozen=True)
class DraftCosts:
    """The times of drafting for all sequences of a step, in seconds."""

    base_s: float
    """The time of a draft, however short. A step without drafts does not pay it."""
    pass_s: float
    """The additional time of each token of the longest draft."""
    token_s: float
    """The additional time of each drafted token of any sequence."""


@dataclass(frozen=True)
class Prospects:
    """Holds the expectations of the drafts of S sequences, up to the length K."""

    accept: Float64Array
    """The probability that the j-th drafted token is accepted, given those before it; float64 [S, K]."""
    go_on: Float64Array
    """The probability that a draft goes on to its j-th token, given those before it; float64 [S, K]."""
    verify_s: Float64Array
    """The seconds of a step without its draft, by the batch's tokens 1, 2, …; float64 [B], B ≥ S (K + 1)."""
    draft: DraftCosts

    def expect(self, lengths: Int32Array) -> tuple[float, float]:
        """Return the expected (tokens, seconds) of a step with these draft lengths, int [S]."""
        within = np.arange(self.accept.shape[1]) < lengths[:, None]
        gained = (self.accept * self.go_on).cumprod(axis=1)[within].sum()
        drafted = self.go_on.cumprod(axis=1)[within].sum()
        n = len(lengths)
        seconds = self._seconds(n, np.array([drafted]), np.array([lengths.max(initial=0)]))
        return n + float(gained), float(seconds[0])

    def best(self, rooms: Int32Array, *, shortest: int = 1, budget_s: float | None = None) -> Int32Array:
        """Return the draft lengths with the largest Θ, int32 [S]; zeros if no draft pays.

        rooms: int [S], the longest useful draft of each sequence. shortest: no draft is shorter, except that
        a sequence may have none. budget_s: no step may be expected to take longer, except one without drafts.
        """
        n, longest = self.accept.shape
        chosen = np.zeros(n, np.int32)
        tokens, seconds = self.expect(chosen)
        theta = tokens / seconds
        limits = np.where(rooms < shortest, 0, np.minimum(rooms, longest))
        for limit in range(shortest, int(limits.max(initial=0)) + 1):
            found = self._best_within(np.minimum(limits, limit), shortest, budget_s)
            if found is not None and found[0] > theta:
                theta, chosen = found
        return chosen

    def _best_within(
        self, limits: Int32Array, shortest: int, budget_s: float | None
    ) -> tuple[float, Int32Array] | None:
        """Return the largest Θ along the greedy order, and its lengths. None if no draft is possible."""
        n, longest = self.accept.shape
        places = np.arange(longest)
        reach, gain = self.go_on.cumprod(axis=1), (self.accept * self.go_on).cumprod(axis=1)
        worth = self.accept.cumprod(axis=1)
        if shortest > 1:  # the first tokens of a draft come together, at their mean worth
            worth[:, :shortest] = (gain[:, :shortest].sum(axis=1) / reach[:, :shortest].sum(axis=1))[:, None]
        rows, cols = np.nonzero(places < limits[:, None])
        if not len(rows):
            return None
        order = np.argsort(-worth[rows, cols], kind="stable")  # so a sequence's tokens keep their order
        rows, cols = rows[order], cols[order]
        tokens = n + gain[rows, cols].cumsum()
        seconds = self._seconds(n, reach[rows, cols].cumsum(), np.maximum.accumulate(cols) + 1)
        theta = np.where(cols + 1 >= shortest, tokens / seconds, 0.0)
        if budget_s is not None:
            theta[seconds > budget_s] = 0.0
        last = int(theta.argmax())
        lengths = np.bincount(rows[: last + 1], minlength=n).astype(np.int32)
        return float(theta[last]), lengths

    def _seconds(self, n: int, drafted: Float64Array, passes: Int32Array) -> Float64Array:
        """Return the seconds of steps of `n` sequences, by drafted tokens and the longest draft."""
        sizes = np.arange(1, len(self.verify_s) + 1)
        verify = np.interp(n + drafted, sizes, self.verify_s)
        draft = self.draft.base_s + self.draft.pass_s * passes + self.draft.token_s * drafted
        return np.asarray(verify + np.where(passes > 0, draft, 0.0))
