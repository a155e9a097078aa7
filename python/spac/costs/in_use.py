"""The costs of an engine: from the last run or guessed, corrected while it runs, kept for the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spac import env
from spac.costs import cache
from spac.costs.cache import Pair
from spac.costs.estimator import CostEstimator
from spac.costs.model import Costs
from spac.errors import InputError

if TYPE_CHECKING:
    import spac._core as _core

_WORTH_KEEPING = 64  # steps: after fewer, what was there before is as good


class CostsInUse:
    """Of one engine, from its start to its end."""

    def __init__(self, pair: Pair, n_tokens: int) -> None:
        """pair: with experts to split; n_tokens: of the largest verification.

        Raises InputError when a model's file cannot be read.
        """
        assert pair.experts is not None
        layers = pair.experts.layers
        self._key = cache.Key.of(pair)
        self.note = ""
        """What a user should know, or ""."""
        try:
            cache.check(self._key)
        except InputError as error:
            self.note = f"measured costs are not kept for the next run: {error}"
        known = cache.load(self._key)
        self.measured = known is not None
        """Whether what it began with was measured in an earlier run."""
        guess = Costs.guessed(layers, n_tokens)
        start = known if known is not None else guess
        self._spares, self._hand_off_s = spares_hand_offs(pair), start.hand_off_s
        if not self._spares:  # no layer is to be whole for what that does not spare
            start, guess = replace(start, hand_off_s=0.0), replace(guess, hand_off_s=0.0)
        try:
            self.estimator = CostEstimator(start.up_to(n_tokens), layers)
        except InputError:  # of the same file, split otherwise
            self.estimator = CostEstimator(guess, layers)

    def observe(self, step: _core.Step) -> None:
        """A step has ended."""
        self.estimator.observe_step(step)

    def close(self) -> None:
        """Keep what was learnt; where that cannot be, `note` has said so."""
        if self.estimator.steps >= _WORTH_KEEPING and not self.note:
            try:
                costs = self.estimator.costs
                if not self._spares:
                    costs = replace(costs, hand_off_s=self._hand_off_s)
                cache.store(self._key, costs)
            except InputError as error:
                self.note = f"measured costs are not kept for the next run: {error}"


def spares_hand_offs(pair: Pair) -> bool:
    """Whether a layer whose experts are all resident runs without the CPU."""
    device, chosen = pair.device, env.DEVICE_MASKS.get()
    return device is None or device.is_stand_in or (device.reads_masks if chosen is None else chosen)
