"""Make masks, and the results that are required under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import BoolArray, Float32Array
from tools.patches.operators import Ids, Shape

# An ids mask hides an expert for all tokens or for none. Every token of a kept expert is kept, and the
# results must be the bits of a run without mask. "rows" masks single rows, with other negative numbers too.
# Then an expert has fewer rows and may get another kernel. It is compared with a run where the masked rows
# went to a spare expert.
BY_EXPERT = ("none", "one", "half", "all but one", "all")
MASKS = (*BY_EXPERT, "rows")


def masked(shape: Shape, mask: str) -> Ids:
    """Return the shape's ids with negative numbers where `mask` hides an expert."""
    ids, rng = shape.ids(), np.random.default_rng(shape.n_tokens)
    n = shape.n_expert
    if mask == "rows":
        negative = rng.choice(np.array([-1, -2, np.iinfo(np.int32).min], np.int32), ids.shape)
        return np.where(rng.random(ids.shape) < 0.5, negative, ids).astype(np.int32)
    hidden = rng.permutation(n)[: {"none": 0, "one": 1, "half": n // 2, "all but one": n - 1, "all": n}[mask]]
    return np.where(np.isin(ids, hidden), -1, ids).astype(np.int32)


def with_spare(shape: Shape, ids: Ids) -> Ids:
    """Return masked ids for an unpatched library: the spare expert replaces hidden ones."""
    return np.where(ids < 0, shape.n_expert, ids).astype(np.int32)


@dataclass
class Count:
    """Numbers of rows, over results and masks."""

    n_kept: int = 0
    n_skipped: int = 0
    n_unequal: int = 0  # kept, and different from the reference's bits
    n_nonzero: int = 0  # skipped, and not exactly zero

    def add(self, ids: Ids, results: list[Float32Array], expected: list[Float32Array]) -> None:
        kept = ids >= 0
        for result, wanted in zip(results, expected, strict=True):
            same: BoolArray = (result.view(np.uint32) == wanted.view(np.uint32)).all(axis=-1)
            zero: BoolArray = (result.view(np.uint32) == 0).all(axis=-1)
            self.n_kept += int(kept.sum())
            self.n_skipped += int((~kept).sum())
            self.n_unequal += int((kept & ~same).sum())
            self.n_nonzero += int((~kept & ~zero).sum())
