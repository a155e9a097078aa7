"""Layers whose experts have slots on other devices than the main one, which has all dense layers."""

from __future__ import annotations

from collections.abc import Sequence

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError
from spac.machine.device_memory import size
from spac.model.devices import room_on
from spac.model.gguf.info import ModelInfo
from spac.model.remote import divided, layer_cache_bytes

_LIVE = 24
"""The rows of a token that a graph keeps at once, each as wide as the model; an estimate."""


class SlotLayers:
    """The division of a model's layers with experts between the main device and devices with slots alone.

    The main device has the first ones, and each other device the next ones, so that each device's experts
    lie together in the file.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        main: _core.DeviceInfo,
        others: Sequence[_core.DeviceInfo],
        draft: ModelInfo | None,
    ) -> None:
        """Decide which layers each of the `others` gets.

        `draft` is on the main device too. Raise InputError for a device without memory.
        """
        self._main, self._others = main, tuple(others)
        n_own = info.n_layer - info.n_mtp_layers
        wanted = config.gpu_layers.count
        first = 0 if wanted is None else max(0, info.n_layer + 1 - wanted)
        self._layers = [each for each in info.expert_layers if first <= each < n_own]
        self.counts = self._by_memory(config, info, draft)
        """The number of layers whose experts each of the other devices has."""

    def entries(self) -> _core.SlotLayers:
        """Return the entries of llama_model_params.tensor_buft_overrides, which loading reads."""
        entries, end = _core.SlotLayers(), len(self._layers) - sum(self.counts)
        for device, n in zip(self._others, self.counts, strict=True):
            entries.add(device.name, self._layers[end : end + n])
            end += n
        return entries

    @property
    def note(self) -> str:
        """A note on the devices of the experts."""
        parts = [f"{n} on {device.name}" for device, n in zip(self._others, self.counts, strict=True)]
        rest = len(self._layers) - sum(self.counts)
        places = ", ".join([f"{rest} on {self._main.name}", *parts])
        return f"--slot-devices: layers whose experts have slots: {places}"

    def _by_memory(self, config: EngineConfig, info: ModelInfo, draft: ModelInfo | None) -> tuple[int, ...]:
        """Return numbers of layers that fill the devices' memory with slots alike, as far as estimates tell.

        If all experts fit, the main device gets as many as it holds, because they need no copies there.
        """
        streams = info.mean_expert_layer * 2 // 3  # two matrices of a layer, through which prompts stream
        work = graph_bytes(config, info) + streams
        rooms = [max(0, room_on(device)[1] - work) for device in self._others]
        for device, room in zip(self._others, rooms, strict=True):
            if room < info.expert_bytes / max(1, info.n_experts):
                raise InputError(
                    f"slot_devices: {device.name} has no memory for an expert of {info.path.name} beside "
                    f"graphs and the driver's libraries ({size(device.memory.free)} are free): leave it out"
                )
        dense = info.device_bytes - info.expert_bytes + cache_bytes(config, info) + work
        if draft is not None:
            dense += draft.file_size + cache_bytes(config, draft) + graph_bytes(config, draft)
        here, n, layer = max(0, room_on(self._main)[1] - dense), len(self._layers), info.mean_expert_layer
        if here + sum(rooms) >= n * layer:
            return tuple(divided(n - min(n, here // max(1, layer)), rooms))
        return tuple(divided(n, [here, *rooms])[1:])


def graph_bytes(config: EngineConfig, info: ModelInfo) -> int:
    """Return the bytes of the buffers of a prompt's graph, as an estimate."""
    return config.ubatch.least * info.n_embd * 4 * _LIVE


def cache_bytes(config: EngineConfig, info: ModelInfo) -> int:
    """Return the bytes of a model's cache on the device, at most."""
    return layer_cache_bytes(config, info) * info.n_layer if config.kv_offload else 0
