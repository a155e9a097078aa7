"""The estimate of the fewest tokens for which prefill streaming is as fast as the split.

With prefill streaming, the experts of a layer that are not resident are copied to the device, and all rows
are computed there. With the split, the CPU computes the rows of these experts. Streaming takes as long for
few tokens as for many. For a graph of n tokens, with r of a layer's N experts resident and k experts for each
token:

    T_stream   = max(upload_s · (N - r), device_expert_s · N)
    T_split(n) = cpu_pair_only_s · (d + 0.3 a), where the CPU computes
                 a = k n (1 - r/N) activations of d = (N - r) (1 - (1 - k/N)^n) distinct experts

Both are summed over the layers. More tokens than the context's own graphs have are split in several such
graphs, each of which reads its experts. The formula draws each token's experts uniformly, which is the worst
case for the CPU. From some dozens of tokens on, nearly every expert is used in any case. The unit times are
those that every step and every copy correct (`spac.costs`). Nothing is measured for prompts alone.

Steps of a single token do not tell the time of reading an expert from that of computing with it, or from a
layer's fixed time: `ExpertCosts.cpu_s` learns their sum. So a prompt's time is not computed with it. Here an
expert's time in a step counts as the time of reading it, and computing with it for one more token takes 0.3
of that. The share was 0.28 on the 16 cores of an H100's host, and 0.3 to 0.4 on one core each of two
others (bench/results/h100, bench/results/expert-rows.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spac.config.values import StreamBatch
from spac.costs import Costs

if TYPE_CHECKING:
    import spac._core as _core

_COMPUTED = 0.3
"""The time in which the CPU computes with an expert for one token, as a share of the time to read it."""
_SETTLED = 0.2  # A relative change of the threshold by less does not justify preparing the graphs again.


def stream_s(costs: Costs, layers: Sequence[_core.LayerInfo], resident: float) -> float:
    """Return T_stream in seconds, with the share `resident` of every layer's experts in slots."""
    total = 0.0
    for layer in layers:
        unit = costs.experts[layer.pool]
        n = layer.n_expert
        total += max(unit.upload_s * n * (1 - resident), unit.device_expert_s * n)
    return total


def split_s(costs: Costs, layers: Sequence[_core.LayerInfo], resident: float, n_tokens: int) -> float:
    """Return T_split(n_tokens) in seconds, with the share `resident` of every layer's experts in slots."""
    total = 0.0
    for layer in layers:
        k, n = layer.n_used or 1, layer.n_expert
        distinct = n * (1 - (1 - min(1.0, k / n)) ** n_tokens)
        work = distinct + _COMPUTED * k * n_tokens
        total += costs.experts[layer.pool].cpu_pair_only_s * work * (1 - resident)
    return total


def worth_it(
    costs: Costs, layers: Sequence[_core.LayerInfo], resident: float, small: int, largest: int
) -> int:
    """Return the fewest tokens of a graph from which on streaming is expected to be as fast as the split.

    The split has graphs of at most `small` tokens. The result is from `StreamBatch.LEAST` to `largest`, or 0
    if streaming is slower for all of them.
    """
    sizes = range(StreamBatch.LEAST, largest + 1)
    limit = stream_s(costs, layers, resident)
    one = split_s(costs, layers, resident, small)

    def is_slower(n: int) -> bool:
        return n // small * one + split_s(costs, layers, resident, n % small) >= limit

    i = bisect_left(sizes, True, key=is_slower)
    return sizes[i] if i < len(sizes) else 0


class PromptStreams:
    """Sets the number of tokens from which on a model's experts stream, and keeps it up to date."""

    def __init__(self, experts: _core.Experts, wanted: StreamBatch, small: int, largest: int) -> None:
        """Store the setting; graphs have `small` tokens if they are split, and `largest` at most."""
        self._experts, self._wanted, self._small, self._largest = experts, wanted, small, largest
        self.tokens = 0
        """The number of tokens of the smallest graph that streams; 0 if none does."""
        self.share = 0.0
        """The number of slots divided by the number of experts."""
        self.graph_s = 0.0
        """The estimated seconds in which a graph's experts come to the device."""

    @property
    def note(self) -> str:
        """A note for the user with the estimate; "" if there is none."""
        if self._wanted.tokens is not None or self.share == 1:
            return ""
        if not self.tokens:
            return "prompts: split, for experts would come to the device slower than the CPU computes them"
        return f"prompts: from {self.tokens} tokens in a graph on, all experts come to the device"

    def update(self, costs: Costs) -> None:
        """Estimate the number of tokens again, between two prompts, with the current costs."""
        layers = self._experts.layers
        self.share = self._experts.slots.n_slots / max(1, sum(layer.n_expert for layer in layers))
        self.graph_s = stream_s(costs, layers, self.share)
        if self._wanted.tokens is not None:
            self._set(self._wanted.tokens)
            return
        tokens = worth_it(costs, layers, self.share, self._small, self._largest)
        known = self.tokens
        is_new = not tokens or not known or abs(tokens - known) > _SETTLED * known
        self._set(tokens if is_new else known)

    def _set(self, tokens: int) -> None:
        if tokens != self.tokens:
            self.tokens = tokens
            self._experts.set_stream_tokens(tokens)
