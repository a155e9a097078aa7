"""How surprised a model is: of logits, without a library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def surprise(logits: npt.NDArray[np.float32], following: Sequence[int]) -> float:
    """The sum of −log p over float [n, n_vocab] logits and the tokens that came."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    return float((total - wide[np.arange(len(wide)), list(following)]).sum())
