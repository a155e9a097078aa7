"""A probe that decodes batches on a target, with the graphs of verification, and measures their time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from spac import _core
from spac.costs.estimator import LayerCosts
from spac.errors import SpacError
from spac.model.c_api import Context, TokenArray


@dataclass(frozen=True)
class Decode:
    """One decoded batch: its time, and the work of every layer on the CPU and on the device."""

    seconds: float
    layers: LayerCosts  # [L]

    @property
    def host_s(self) -> float:
        """The CPU's time for experts, in seconds."""
        return float(self.layers["host_ns"].sum()) * 1e-9


class Probe:
    """A batch on a context that nothing else uses meanwhile; all decoded batches follow the same tokens."""

    def __init__(self, context: Context, experts: _core.Experts, before: TokenArray) -> None:
        """Evaluate the tokens `before`, which every batch follows."""
        self._context, self._experts, self._before = context, experts, before
        self._start()

    def close(self) -> None:
        """Empty the context."""
        _core.clear_memory(self._context.pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def decode(self, tokens: Sequence[int] | TokenArray) -> Decode:
        """Evaluate `tokens` with logits for each, then remove them; raise SpacError when this fails."""
        self._experts.take_layer_costs()
        start = time.perf_counter_ns()
        self._run(tokens, len(self._before), logits=True)
        _core.synchronize(self._context.pointer)
        seconds = (time.perf_counter_ns() - start) * 1e-9
        layers = self._experts.take_layer_costs()
        if not _core.forget_from(self._context.pointer, len(self._before)):
            self._start()  # This memory cannot remove tokens.
        return Decode(seconds, layers)

    def _start(self) -> None:
        _core.clear_memory(self._context.pointer)
        self._experts.set_counting(False)
        for first in range(0, len(self._before), 64):
            self._run(self._before[first : first + 64], first, logits=False)
        _core.synchronize(self._context.pointer)
        self._experts.set_counting(True)

    def _run(self, tokens: Sequence[int] | TokenArray, position: int, *, logits: bool) -> None:
        code = _core.decode(self._context.pointer, tokens, position, logits)
        if code != 0:
            raise SpacError(f"the model could not be evaluated (llama_decode returned {code})")
