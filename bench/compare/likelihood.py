"""Compute how surprised a model is from logits, without a library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TOKENS = 256
"""Tokens of each prompt that likelihoods are measured on."""
PIECE = 32
"""Tokens evaluated at a time. They are too few to stream experts, so that the split is measured."""


def surprises(logits: npt.NDArray[np.float32], following: Sequence[int]) -> list[float]:
    """Return −log p of each following token, from float [n, n_vocab] logits."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    found: list[float] = (total - wide[np.arange(len(wide)), list(following)]).tolist()
    return found


def perplexity(found: Sequence[float]) -> float:
    """Return the perplexity of tokens with these surprises."""
    return float(np.exp(np.mean(found)))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how far two models are apart on the same tokens: the mean difference of a token's surprise, in
    nats.

    This is much sharper than the difference of two perplexities, in which tokens' differences cancel.
    """
    return float(np.abs(np.subtract(one, other)).mean())
