"""From how many tokens on a prompt's experts come to the device.

A layer's experts can be brought together on the device, those that are not resident over the link, and all
rows be computed there; or the CPU computes the rows of those that are not resident. The first takes as long
for few tokens as for many. For a graph of n tokens, with r of a layer's N experts resident and k wanted by
every token:

    T_stream   = max(upload_s · (N - r), device_expert_s · N)
    T_split(n) = T_cpu of k n (1 - r/N) activations of (N - r) (1 - (1 - k/N)^n) distinct experts

summed over the layers; T_cpu is that of `ExpertCosts`. Tokens that want experts as if drawn alike are the
worst case for the CPU, but from some dozens on nearly every expert is wanted either way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from spac.config.values import StreamBatch
from spac.costs import Costs

if TYPE_CHECKING:
    import spac._core as _core

_SETTLED = 0.2  # a change of the threshold by less is not worth preparing graphs anew


class Layer(Protocol):
    """What the estimate needs of an MoE layer (`spac._core.LayerInfo`)."""

    @property
    def n_expert(self) -> int: ...
    @property
    def n_used(self) -> int: ...
    @property
    def pool(self) -> int: ...


def stream_s(costs: Costs, layers: Sequence[Layer], resident: float) -> float:
    """T_stream, with the share `resident` of every layer's experts on the device."""
    total = 0.0
    for layer in layers:
        unit = costs.experts[layer.pool]
        n = layer.n_expert
        total += max(unit.upload_s * n * (1 - resident), unit.device_expert_s * n)
    return total


def split_s(costs: Costs, layers: Sequence[Layer], resident: float, n_tokens: int) -> float:
    """T_split(n_tokens)."""
    total = 0.0
    for layer in layers:
        k, n = layer.n_used or 1, layer.n_expert
        distinct = n * (1 - (1 - min(1.0, k / n)) ** n_tokens)
        total += costs.experts[layer.pool].cpu_s(k * n_tokens * (1 - resident), distinct * (1 - resident))
    return total


def worth_it(costs: Costs, layers: Sequence[Layer], resident: float, largest: int) -> int:
    """The fewest tokens of a graph, `StreamBatch.LEAST` to `largest`, from which on streaming is expected to
    pay; 0 where it never does."""
    sizes = range(StreamBatch.LEAST, largest + 1)
    limit = stream_s(costs, layers, resident)
    i = bisect_left(sizes, True, key=lambda n: split_s(costs, layers, resident, n) >= limit)
    return sizes[i] if i < len(sizes) else 0


class PromptStreams:
    """Says to a model's experts from how many tokens on they stream, and keeps that true."""

    def __init__(self, experts: _core.Experts, wanted: StreamBatch, largest: int) -> None:
        """largest: tokens that a graph has at most."""
        self._experts, self._wanted, self._largest = experts, wanted, largest
        self._tokens = 0
        self._share = 0.0  # of the experts, that have slots

    @property
    def tokens(self) -> int:
        """Of the smallest graph that streams, as of the last `update`; 0: none does."""
        return self._tokens

    @property
    def note(self) -> str:
        """What was estimated, in words; "" where nothing was."""
        if self._wanted.tokens is not None or self._share == 1:
            return ""
        if not self._tokens:
            return "prompts: split, for experts would come to the device slower than the CPU computes them"
        return f"prompts: from {self._tokens} tokens in a graph on, all experts come to the device"

    def update(self, costs: Costs) -> None:
        """With what things cost now; between two prompts."""
        if self._wanted.tokens is not None:
            self._set(self._wanted.tokens)
            return
        layers = self._experts.layers
        self._share = self._experts.slots.n_slots / max(1, sum(layer.n_expert for layer in layers))
        tokens = worth_it(costs, layers, self._share, self._largest)
        if not tokens or not self._tokens or abs(tokens - self._tokens) > _SETTLED * self._tokens:
            self._set(tokens)

    def _set(self, tokens: int) -> None:
        if tokens != self._tokens:
            self._tokens = tokens
            self._experts.set_stream_tokens(tokens)
