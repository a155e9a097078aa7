"""The measured costs of an engine's models. They are kept from run to run, and corrected by each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

from spac import _core, env
from spac.costs import Costs, store
from spac.costs.estimator import EAGER, CostEstimator
from spac.errors import InputError
from spac.machine.device_memory import simulated_index
from spac.model.pair import ModelPair

_LEAST_TOKENS, _MOST_TOKENS = 32, 1024
"""The fewest steps of one token that are kept without the split, and the last ones that count."""


class CostsInUse:
    """The costs of one engine, which are corrected from its start to its end."""

    def __init__(self, pair: ModelPair, n_tokens: int) -> None:
        """Load the costs of the last run, or guess them.

        `pair` has experts to split. `n_tokens` is the number of tokens in the largest verification. Raise
        InputError if a model's file cannot be read.
        """
        assert pair.experts is not None
        layers = pair.experts.layers
        self._key, self._pair = key_of(pair), pair
        self.notes: list[str] = []
        """Notes for the user."""
        self.about_drafts: Callable[[], dict[str, Any]] = dict
        """Returns what is kept of the run's drafts, for readers."""
        self._keeps = True
        try:
            store.check()
        except InputError as error:
            self._keeps = False
            self.notes.append(f"measured costs are not kept for the next run: {error}")
        entry, known = store.get(self._key, self.notes), None
        with suppress(InputError):
            known = Costs.from_dict(entry.value.get("costs")) if entry is not None else None
        self.measured = known is not None
        """True if the costs at the start were measured in an earlier run."""
        guess = Costs.guessed(layers, n_tokens)
        start = known if known is not None else guess
        self._spares, self._hand_off_s = spares_hand_offs(pair.placement.device), start.hand_off_s
        if not self._spares:  # A whole layer saves no hand-off here, so no plan should count on it.
            start, guess = replace(start, hand_off_s=0.0), replace(guess, hand_off_s=0.0)
        try:
            self.estimator = CostEstimator(start.up_to(n_tokens), layers, measured=self.measured)
        except InputError:  # The stored costs are for another split of the file.
            self.measured = False
            self.estimator = CostEstimator(guess, layers, measured=False)

    def observe(self, step: _core.Step, n_asked: int) -> None:
        """Learn from a step that has ended, which was asked for a draft of `n_asked` tokens."""
        self.estimator.observe(step, n_asked)

    def close(self) -> None:
        """Store the learned costs, if they can be kept, and the slots and drafts of this run."""
        if self.estimator.steps >= EAGER and self._keeps and self._pair.experts is not None:
            costs = self.estimator.costs
            if not self._spares:
                costs = replace(costs, hand_off_s=self._hand_off_s)
            run = {"slots": self._pair.experts.slots.n_slots, **self.about_drafts()}
            with suppress(InputError):  # A folder that has vanished since keeps nothing.
                store.put(self._key, {"costs": costs.to_dict(), "run": run})


class TokenTime:
    """The time of a token of a model that runs without the split, kept for `spac models`."""

    def __init__(self, pair: ModelPair) -> None:
        """Follow a pair that has no experts to split."""
        self._pair = pair
        self._seconds = deque[float](maxlen=_MOST_TOKENS)

    def observe(self, step: _core.Step) -> None:
        """Learn from a step that has ended, if it evaluated one token."""
        if step.n_verified == 1:
            self._seconds.append((step.verify_ns + step.sample_ns) * 1e-9)

    def close(self) -> None:
        """Store the median time, if there are enough. A folder that cannot be written keeps none."""
        if len(self._seconds) >= _LEAST_TOKENS:
            times = (median(self._seconds),)
            with suppress(InputError):
                costs = Costs((), 0.0, 0.0, times, times)
                store.put(key_of(self._pair), {"costs": costs.to_dict(), "run": {}})


def spares_hand_offs(device: _core.DeviceInfo | None) -> bool:
    """Return True if a layer whose experts are all resident runs without the CPU."""
    chosen = env.FORM.get("masks")
    return device is None or (device.reads_masks if chosen is None else chosen)


def key_of(pair: ModelPair) -> store.Key:
    """Return the key of a pair's costs, or raise InputError if a model's file cannot be read."""
    device, place = "cpu", pair.placement
    if place.device is not None:
        others = [each for each in place.devices if each.name != place.device.name]
        device = "; ".join(map(_described, (place.device, *others)))
    draft = pair.draft.path if pair.draft is not None else None
    return store.Key.of(
        "costs", device=device + setup_of(pair), threads=place.threads, target=pair.target.path, draft=draft
    )


def _described(device: _core.DeviceInfo) -> str:
    """Return a description of a device, with a simulated one's settings."""
    text = f"{device.name}, {device.description}, {device.memory_total >> 20} MiB"
    if (index := simulated_index(device.name)) is not None:
        settings = sorted(_core.simulated_device(index).items())
        text += "".join(f", {name} {value:g}" for name, value in settings if value)
    return text


def setup_of(pair: ModelPair) -> str:
    """Return a text of the settings that change the costs of a pair's files; "" if there are none."""
    config, place, parts = pair.placement.config, pair.placement, []
    if place.slot_layers is not None:
        parts.append(f"slots alone on {place.device_names}: {place.slot_layers.counts}")
    elif len(place.devices) > 1:
        parts.append(f"layers of {place.device_names} as {config.tensor_split or 'their memory'}")
    if place.whole:
        parts.append("without the split")
    if config.draft_types == ("draft-mtp",) and pair.draft is None:
        parts.append("prediction layers")
    if place.device is not None and place.layers_on_device != pair.target.n_layer:
        parts.append(f"{place.layers_on_device} layers")
    if place.remote is not None:
        parts += [f"{n} layers on {address}" for address, n in place.remote.by_server.items()]
    for name in ("cache_type_k", "cache_type_v", "cache_type_k_draft", "cache_type_v_draft"):
        if (kind := getattr(config, name)) != "f16":
            parts.append(f"{name} {kind}")
    parts += [f"{name} {value}" for name, value in sorted(config.override_kv.items())]
    parts += [f"lora {adapter.path.name}" for adapter in config.lora]
    if place.paged:
        parts.append("paged")
    elif pair.experts is not None and pair.experts.host_bytes.why:
        parts.append("not all pinned")
    if not config.kv_offload:
        parts.append("cache on the CPU")
    if _core.trusted_cpu_kernels() and not _core.cpu_kernels_enabled():
        parts.append("llama.cpp's kernels")
    if config.gpu_layers_draft.count is not None:
        parts.append(f"{config.gpu_layers_draft} layers of the draft")
    return "".join(f", {part}" for part in parts)
