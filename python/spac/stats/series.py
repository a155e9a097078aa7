"""A series of figures for all steps of a run of any length, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import Float64Array


class Series:
    """Rows of sums over consecutive steps.

    When the rows are full, they are merged two by two. From then on, each row covers twice as many steps.
    """

    def __init__(self, n_column: int, capacity: int) -> None:
        """Make an empty series; `capacity` is the largest number of rows, which is even."""
        self._rows = np.zeros((capacity, n_column))
        self._n_row = self._in_last = 0
        self.per_row = 1
        """The number of steps in a row; the last row may have fewer."""

    @property
    def rows(self) -> Float64Array:
        """The rows, float64 [row, column], as a view."""
        return self._rows[: self._n_row]

    @property
    def described(self) -> dict[str, Any]:
        """The fields of a recording: `per_row`, and in `steps` the number of steps in each row."""
        full = [self.per_row] * max(0, self._n_row - 1)
        return {"per_row": self.per_row, "steps": [*full, self._in_last] if self._n_row else full}

    def add(self, values: Sequence[float] | npt.NDArray[Any]) -> None:
        """Add the values of one step, one for each column."""
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
