"""The experts that the target's routers choose for the hidden states of a draft, while it is made.

The draft's graph has the target's routers as nodes (`_core.Tap`), so the choices are known layer by layer. A
thread waits for them, and asks the scheduler with each new layer. What a token leaves unasked then is asked
when the token is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.model.pair import ModelPair


class TargetRoutes:
    """Collects the choices for each draft's tokens, from the tap on the draft's context.

    A lock of the caller guards all methods but `close`.
    """

    def __init__(self, tap: _core.Tap, target: _core.Experts, inputs: Sequence[int], most: int) -> None:
        """Ask nothing yet.

        inputs: the draft's layer whose state each MoE layer of the target gets. most: the largest number of
        tokens that a step's drafts evaluate.
        """
        self._tap, self._target, self._inputs, self._most = tap, target, list(inputs), most
        self._asked: list[int] = []
        self._routes = self._unknown()
        self._n, self._n_shown = 0, 0  # tokens of this draft that are known, and the last one's number
        self._thread: Thread | None = None
        self._failure: Exception | None = None

    def ask(self, critical: Int32Array) -> None:
        """Ask the routers of the first layers for `critical` experts each, int32 [n], from the next draft on.

        Raise InputError for a router that cannot be asked.
        """
        self._n = 0
        if critical.tolist() != self._asked:
            self._asked = critical.tolist()
            self._tap.ask(self._target, self._inputs[: len(self._asked)], self._asked)
        self._routes = self._unknown()

    def listen(self, heard: Callable[[int, Int32Array], None]) -> None:
        """Call `heard` with the arguments of `under_way`, on a thread, with each new layer until `close`."""
        self._thread = Thread(target=self._listen, args=(heard,), name="spac-target-routes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and ask nothing more."""
        self._tap.stop()
        if self._thread is not None:
            self._thread.join()
        self._tap.ask(self._target, [], [])

    def under_way(self, token: int, chosen: Int32Array) -> Int32Array | None:
        """Return the choices, int32 [L, T, U], with those of the token that the draft computes now.

        token: its number. chosen: int32 [n, U], the choices of the first n layers. Rows that are not known
        have -1. Return None if the token is known already.
        """
        if token <= self._n_shown or self._n >= self._most:
            return None
        self._routes[:, self._n] = -1
        self._routes[: len(chosen), self._n, : chosen.shape[1]] = chosen
        return self._routes[:, : self._n + 1]

    def drafted(self, n: int) -> Int32Array:
        """Return the choices, int32 [L, T, U], after the n-th token of a draft is evaluated.

        T is n, and the token before the draft comes first. T is 0 if the tokens were not shown. With drafts
        of several slots, n counts on, and each draft's tokens follow those of the one before. The array is
        valid until the next call. Raise what a call of `listen` raised.
        """
        if self._failure is not None:
            raise self._failure
        if n == 1:
            self._n = 0
        self._add(n)
        return self._routes[:, : self._n]

    def at_end(self, n: int) -> Int32Array:
        """Return the choices, int32 [L, T, U], after a draft of n tokens has ended.

        T is n + 1 if the draft ended at a token that it refused, and n or 0 otherwise, as in `drafted`. With
        several slots, n is the sum of their drafts, and each of them may have one token more.
        """
        if n == 0 or n > self._n:
            self._n = 0
        elif self._tap.n_shown == self._n_shown + 1:
            self._add(self._n + 1)
        found, self._n = self._routes[:, : self._n], 0
        return found

    def _add(self, n: int) -> None:
        chosen = self._tap.answers()
        self._n_shown = self._tap.n_shown
        if chosen is None or self._n != n - 1 or n > self._routes.shape[1]:
            self._n = 0
            return
        self._routes[:, n - 1] = -1
        self._routes[: len(chosen), n - 1, : chosen.shape[1]] = chosen
        self._n = n

    def _unknown(self) -> Int32Array:
        return np.full((len(self._inputs), self._most, max(self._asked, default=0)), -1, np.int32)

    def _listen(self, heard: Callable[[int, Int32Array], None]) -> None:
        token, n = 0, 0
        while (found := self._tap.next(token, n)) is not None:
            token, chosen = found
            n = len(chosen)
            try:
                heard(token, chosen)
            except Exception as error:
                self._failure = error
                return


def watch_draft(name: str, config: EngineConfig, pair: ModelPair) -> TargetRoutes:
    """Return the choices of a pair's target for the states of its draft.

    `name` is the name of the scheduler that needs them. Raise InputError unless the two models have the same
    number of layers and the same width.
    """
    fault = _misfit(config, pair)
    if fault or pair.draft_tap is None or pair.experts is None:
        raise InputError(
            f"scheduler '{name}' shows what each layer of the draft computes to that layer's router in the "
            f"target, and {fault}: give a draft with the target's width and number of layers as --draft "
            f"(Mistral 7B for Mixtral 8x7B, or a quantized copy of the target), or choose another --scheduler"
        )
    blocks = [int(found[1]) for x in pair.experts.layers if (found := re.match(r"blk\.(\d+)\.", x.name))]
    main = pair.placement.device.name if pair.placement.device is not None else ""
    if not pair.placement.draft_on_cpu and any(each.name != main for each in pair.experts.devices):
        raise InputError(
            f"scheduler '{name}' asks the target's routers on the draft's device, {main}, and the target is "
            f"on {pair.placement.device_names}: choose another --scheduler, or --split-mode none, or "
            "--gpu-layers-draft 0"
        )
    return TargetRoutes(pair.draft_tap, pair.experts, blocks, (config.longest_draft + 1) * pair.n_sequences)


def _misfit(config: EngineConfig, pair: ModelPair) -> str | None:
    """Return why the draft's layers do not fit the target's routers, or None if they do."""
    if config.draft is None or not config.draft_types or pair.draft_tap is None:
        return "there is no draft"
    if config.draft_types != ("draft-simple",):
        return f"--draft-type {','.join(config.draft_types)} is not draft-simple alone"
    draft, target = Path(config.draft).name, Path(config.target).name
    shown, wanted = pair.draft_states, pair.target_states
    if shown == wanted:
        return None
    device = pair.placement.device.name if pair.placement.device is not None else "cpu"
    where = "the CPU" if pair.placement.draft_on_cpu else device
    seen = f"{shown[0]} layers of width {shown[1]}" if shown[0] else "no layers"
    return f"{draft} shows {seen} on {where} where {target} has {wanted[0]} of width {wanted[1]}"
