"""The decision that a model whose experts all fit runs without the split, which is faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spac import _core
from spac.config import EngineConfig
from spac.model.devices import room_on
from spac.model.gguf.info import ModelInfo
from spac.model.slot_layers import cache_bytes, graph_bytes


def all_fit(
    config: EngineConfig, info: ModelInfo, draft: ModelInfo | None, devices: Sequence[_core.DeviceInfo]
) -> bool:
    """Return True if no option asks for the split, and the devices hold all of a model.

    That is its weights, its context, the buffers of its graphs, the draft, the projector and the adapters.
    The margin of each device stays free. Contexts and buffers are estimates.
    """
    layers = config.gpu_layers.count
    if not (devices and gains_on(devices) and info.is_moe and config.leaves_split):
        return False
    if layers is not None and layers <= info.n_layer:
        return False
    files = [Path(file) for file in (config.mmproj or "", *(adapter.path for adapter in config.lora))]
    each = sum(file.stat().st_size for file in files if file.is_file()) + _work(config, info)
    if draft is not None:  # Each device needs room for it: llama.cpp divides the layers without regard to it.
        each += draft.file_size + cache_bytes(config, draft) + _work(config, draft)
    each += info.layer_bytes if len(devices) > 1 else 0  # Layers are not divided.
    divided = info.device_bytes + cache_bytes(config, info)
    parts = list(map(float, config.tensor_split or [device.memory.device_free for device in devices]))
    for device, part in zip(devices, [*parts, *(0.0 for _ in devices)], strict=False):
        if divided * part / (sum(parts) or 1.0) + each > room_on(device, config.vram_limit)[1]:
            return False
    return True


def gains_on(devices: Sequence[_core.DeviceInfo]) -> bool:
    """Return True if no device shares the host's memory, where experts would lie in memory twice."""
    return not any(device.shares_host_memory for device in devices)


def _work(config: EngineConfig, info: ModelInfo) -> int:
    """Return the bytes of the buffers of a model's graphs, with logits for each token of a batch."""
    return graph_bytes(config, info) + config.ubatch.least * info.n_vocab * 4
