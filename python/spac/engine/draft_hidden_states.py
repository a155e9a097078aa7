"""The hidden states of a draft's layers, for schedulers that evaluate the target's routers on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError
from spac.machine.arrays import Float32Array
from spac.model.gguf.routers import read_routers
from spac.scheduler.routers import Routers


class DraftStates:
    """Collects the hidden states of each draft, token by token, from the tap on the draft's context.

    The states come by token and not by layer. A token's graph is launched in one piece with its states
    behind it, and drafting waits for the token's logits anyway. Schedulers use the states between two tokens,
    and the copies that they start run while the device drafts the next token.
    """

    def __init__(self, tap: _core.Tap, routers: Routers, longest: int) -> None:
        """Turn the tap on; `longest` is the largest number of tokens in a draft.

        Raise OutOfMemoryError if the device has too little memory.
        """
        tap.set_on(True)
        self.routers = routers
        """The target's routers."""
        self._tap = tap
        self._rows = np.zeros((longest + 1, tap.n_layer, tap.n_embd), np.float32)
        self._n, self._n_tapped = 0, 0

    def drafted(self, n: int) -> Float32Array:
        """Return the hidden states, float32 [D, T, E], after the n-th token of a draft is known.

        T is n, and the token before the draft comes first. T is 0 if the tokens were not tapped. The array is
        valid until the next call.
        """
        if n == 1:
            self._n = 0
        self._add(n)
        return self._view()

    def at_end(self, n: int) -> Float32Array:
        """Return the hidden states, float32 [D, T, E], after a draft of n tokens has ended.

        T is n + 1 if the draft ended at a token that it refused, and n or 0 otherwise, as in `drafted`.
        """
        if n != self._n:
            self._n = 0
        elif n and self._tap.n_tapped == self._n_tapped + 1:
            self._add(n + 1)
        return self._view()

    def _add(self, n: int) -> None:
        states = self._tap.states()
        self._n_tapped = self._tap.n_tapped
        if states is None or self._n != n - 1 or n > len(self._rows):
            self._n = 0
            return
        self._rows[n - 1] = states
        self._n = n

    def _view(self) -> Float32Array:
        return self._rows[: self._n].transpose(1, 0, 2)


def watch_draft(
    name: str, config: EngineConfig, layers: Sequence[str], tap: _core.Tap | None, device: str
) -> DraftStates:
    """Return the hidden states of an engine's draft, with the routers of the target's MoE layers.

    `name` is the name of the scheduler that needs them, and `layers` has the `Layer.name` of each MoE layer.
    Raise InputError unless the two models have the same number of layers and the same width.
    """
    routers = read_routers(Path(config.target), layers)
    fault = _misfit(config, routers, tap, device)
    if fault or tap is None:
        raise InputError(
            f"scheduler '{name}' shows what each layer of the draft computes to that layer's router in the "
            f"target, and {fault}: give a draft with the target's width and number of layers as --draft "
            f"(Mistral 7B for Mixtral 8x7B, or a quantized copy of the target), or choose another --scheduler"
        )
    return DraftStates(tap, routers, config.longest_draft)


def _misfit(config: EngineConfig, routers: Routers, tap: _core.Tap | None, device: str) -> str | None:
    """Return why the draft's layers do not fit the target's routers, or None if they do."""
    if config.draft is None or not config.draft_types or tap is None:
        return "there is no draft"
    if config.draft_types != ("draft-simple",):
        return f"--draft-type {','.join(config.draft_types)} is not draft-simple alone"
    draft, target = Path(config.draft).name, Path(config.target).name
    if (tap.n_layer, tap.n_embd) == (routers.n_layer, routers.n_embd):
        return None
    seen = f"{tap.n_layer} layers of width {tap.n_embd}" if tap.n_layer else "no layers"
    return f"{draft} shows {seen} on {device} where {target} has {routers.n_layer} of width {routers.n_embd}"
