"""How surprised a model is: of logits, without a library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TOKENS = 256
"""Of each prompt that likelihoods are measured on."""
PIECE = 32
"""Tokens evaluated at a time: too few to stream experts, so that it is the split that is seen."""


def surprises(logits: npt.NDArray[np.float32], following: Sequence[int]) -> list[float]:
    """−log p of each token that came, after float [n, n_vocab] logits."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    found: list[float] = (total - wide[np.arange(len(wide)), list(following)]).tolist()
    return found


def perplexity(found: Sequence[float]) -> float:
    """Of tokens with these surprises."""
    return float(np.exp(np.mean(found)))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """How far two models are apart on the same tokens: the mean difference of a token's surprise, in nats.

    Much sharper than the difference of two perplexities, in which tokens' differences cancel.
    """
    return float(np.abs(np.subtract(one, other)).mean())
