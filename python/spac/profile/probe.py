"""Decodes batches on a target, timed: the graphs that verification runs, with whatever is resident."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import llama_cpp.llama_cpp as api

from spac import _core
from spac.costs.estimator import LayerCosts
from spac.errors import SpacError
from spac.model.c_api import Context, TokenArray


@dataclass(frozen=True)
class Decode:
    """One batch: how long it took, and what every layer left to whom."""

    seconds: float
    layers: LayerCosts  # [L]

    @property
    def host_s(self) -> float:
        """The CPU's time for experts."""
        return float(self.layers["host_ns"].sum()) * 1e-9


class Probe:
    """Owns a batch on a context that nobody else uses meanwhile. All batches follow the same tokens."""

    def __init__(self, context: Context, experts: _core.Experts, before: TokenArray, n_tokens: int) -> None:
        """before: what the context holds; n_tokens: of the largest batch."""
        self._context, self._experts, self._before = context, experts, before
        self._batch = api.llama_batch_init(max(n_tokens, 64), 0, 1)
        self._memory = api.llama_get_memory(context.pointer)
        self._start()

    def close(self) -> None:
        """Empties the context."""
        if self._batch is not None:
            api.llama_memory_clear(self._memory, True)
            api.llama_batch_free(self._batch)
            self._batch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def decode(self, tokens: Sequence[int] | TokenArray) -> Decode:
        """Evaluates `tokens` with logits for each, then takes them back. Raises SpacError when it fails."""
        self._fill(tokens, len(self._before), logits=True)
        self._experts.take_layer_costs()
        start = time.perf_counter_ns()
        self._run()
        api.llama_synchronize(self._context.pointer)
        seconds = (time.perf_counter_ns() - start) * 1e-9
        layers = self._experts.take_layer_costs()
        if not api.llama_memory_seq_rm(self._memory, 0, len(self._before), -1):
            self._start()  # a memory that takes nothing back
        return Decode(seconds, layers)

    def _start(self) -> None:
        api.llama_memory_clear(self._memory, True)
        self._experts.set_counting(False)
        for first in range(0, len(self._before), 64):
            self._fill(self._before[first : first + 64], first, logits=False)
            self._run()
        api.llama_synchronize(self._context.pointer)
        self._experts.set_counting(True)

    def _fill(self, tokens: Sequence[int] | TokenArray, position: int, *, logits: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = int(token), position + i, logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0

    def _run(self) -> None:
        code = api.llama_decode(self._context.pointer, self._batch)
        if code != 0:
            raise SpacError(f"the model could not be evaluated (llama_decode returned {code})")
