"""Find repetition loops in generated text."""

from __future__ import annotations

import numpy as np

LONGEST_PERIOD = 64
SHORTEST_LOOP = 24


def in_loop(tokens: np.ndarray) -> np.ndarray:
    """Return for each token if the text up to and with it repeats itself.

    It does when, for some period of at most 64 tokens, the last ``max(24, 2 * period)`` tokens each equal the
    one a period earlier.
    """
    looping = np.zeros(len(tokens), dtype=bool)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        same = np.concatenate([np.zeros(period, dtype=bool), tokens[period:] == tokens[:-period]])
        last_break = np.maximum.accumulate(np.where(same, -1, np.arange(len(tokens))))
        looping |= np.arange(len(tokens)) - last_break >= max(SHORTEST_LOOP, 2 * period)
    return looping
