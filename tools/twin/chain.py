"""Make the chain that a twin's embeddings and its head compute together.

Token c's successor is c + 1, the last one's is 0. The head's row of a token is the embedding of its
predecessor. So the residual stream, an embedding with the layers' additions, points at the successor. Rows
are made in order, a piece at a time. The same seed makes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tools.twin.drift import Drift
from tools.twin.vocabulary import Vocabulary

Floats = npt.NDArray[np.float32]

PEAK = 30.0
"""The logit of the chain's successor, where noise has PEAK / √width. Text at temperature 1 follows it too."""
_IDLE = 0.05  # scale of head rows of tokens that are never written, and of padding's embeddings
_SKIPPED = 0.6  # weight of the tokens that a draft skips, in the row of the first token after them


class Chain:
    """Embedding and head of one model over a vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, width: int, drift: Drift, seed: int, agreement: float = 1.0
    ) -> None:
        """Make a chain. The model knows the successors of a share `agreement` of tokens, no others."""
        self._vocabulary, self._width, self._drift, self._seed = vocabulary, width, drift, seed
        rng = np.random.default_rng([seed, 2])
        self.knows: npt.NDArray[np.bool_] = rng.random(vocabulary.n_chain) < agreement
        """bool [n_chain]: the model knows the successor of this token of the chain."""
        self._last = self._chain_end()

    def _words(self, n_rows: int) -> Iterator[Floats]:
        """Yield the chain's embeddings, root mean square 1, [<= n_rows, width] at a time."""
        drift, n, width = self._drift, self._vocabulary.n_chain, self._width
        rng = np.random.Generator(np.random.SFC64([self._seed, 3]))
        common = np.float32(np.sqrt(drift.skew)) * rng.standard_normal(width, dtype=np.float32)
        first = slow = rng.standard_normal(width, dtype=np.float32)
        s, step = np.float32(drift.persistence), np.float32(np.sqrt(1 - drift.persistence**2))
        own, share = np.float32(np.sqrt(1 - drift.share - drift.skew)), np.float32(np.sqrt(drift.share))
        for start in range(0, n, n_rows):
            count = min(n_rows, n - start)
            fresh = rng.standard_normal((count, width), dtype=np.float32) * step
            for row in fresh:
                row += s * slow
                slow = row
            # The slow part returns to where it began, so that the last token's successor is the first.
            back = np.float32(drift.persistence) ** (n - np.arange(start, start + count, dtype=np.float32))
            returned = back[:, None] * first + np.sqrt(1 - back[:, None] ** 2) * fresh
            rows = own * rng.standard_normal((count, width), dtype=np.float32) + share * returned + common
            yield rows / np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True))

    def _chain_end(self) -> Floats:
        last = np.zeros(self._width, np.float32)
        for rows in self._words(4096):
            last = rows[-1]
        return last

    def embedding(self, n_rows: int) -> Iterator[Floats]:
        """Yield all rows of the token embedding, float32 [<= n_rows, width] at a time.

        An entry (a byte, a part of a word) has the embedding of a word, spread over the chain: a prompt may
        end with any token.
        """
        v = self._vocabulary
        doors = np.arange(v.n_entry, dtype=np.int64) * v.n_chain // v.n_entry
        entries = np.empty((v.n_entry, self._width), np.float32)
        start = 0
        for rows in self._words(n_rows):
            inside = (doors >= start) & (doors < start + len(rows))
            entries[inside] = rows[doors[inside] - start]
            start += len(rows)
            yield rows
        yield from (entries[i : i + n_rows] for i in range(0, v.n_entry, n_rows))
        yield from self._idle(len(v.tokens) - v.first_special, 1.0, n_rows)

    def _idle(self, n: int, scale: float, n_rows: int) -> Iterator[Floats]:
        rng = np.random.default_rng([self._seed, 4])
        for start in range(0, n, n_rows):
            shape = (min(n_rows, n - start), self._width)
            yield np.float32(scale) * rng.standard_normal(shape, dtype=np.float32)

    def head(self, n_rows: int) -> Iterator[Floats]:
        """Yield all rows of the output matrix. Each is the embedding of the token's predecessor, scaled to
        the peak."""
        v, gain = self._vocabulary, np.float32(PEAK / self._width)
        before, skipped, start = self._last, np.zeros(self._width, np.float32), 0
        for rows in self._words(n_rows):
            head = np.concatenate([before[None], rows[:-1]])
            before = rows[-1]
            known = self.knows[np.arange(start - 1, start + len(rows) - 1)]  # the predecessors' values
            for i in np.flatnonzero(~known | np.concatenate([[True], ~known[:-1]])):
                if known[i]:
                    head[i] += skipped
                    head[i] *= np.sqrt(np.float32(self._width) / np.square(head[i]).sum())
                    skipped[:] = 0
                else:
                    skipped += np.float32(_SKIPPED) * head[i]
                    head[i] *= _IDLE
            start += len(rows)
            yield head * gain
        yield from self._idle(len(v.tokens) - v.n_chain, _IDLE * gain, n_rows)
