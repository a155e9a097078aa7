"""Figures of every step of a run of any length, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Series:
    """Rows of sums over consecutive steps.

    When the rows are full, they are merged two by two, and from then on each stands for twice as many steps.
    """

    def __init__(self, n_column: int, capacity: int) -> None:
        """capacity: rows at most, an even number."""
        self._rows = np.zeros((capacity, n_column))
        self._n_row = self._in_last = 0
        self.per_row = 1
        """Steps of a row; the last one may have fewer."""

    @property
    def rows(self) -> FloatArray:
        """float64 [row, column]. A view."""
        return self._rows[: self._n_row]

    @property
    def n(self) -> int:
        """Steps."""
        return max(0, self._n_row - 1) * self.per_row + self._in_last

    @property
    def told(self) -> dict[str, Any]:
        """per_row, and the steps of each row."""
        full = [self.per_row] * max(0, self._n_row - 1)
        return {"per_row": self.per_row, "steps": [*full, self._in_last] if self._n_row else full}

    def add(self, values: Sequence[float] | npt.NDArray[Any]) -> None:
        """One step's."""
        if self._in_last == self.per_row or self._n_row == 0:
            if self._n_row == len(self._rows):
                self._merge()
            self._n_row += 1
            self._in_last = 0
        self._rows[self._n_row - 1] += values
        self._in_last += 1

    def _merge(self) -> None:
        half = len(self._rows) // 2
        self._rows[:half] = self._rows[0::2] + self._rows[1::2]
        self._rows[half:] = 0
        self._n_row, self.per_row = half, 2 * self.per_row
