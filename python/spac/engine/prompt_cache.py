"""What is kept of conversations that the context does not hold any more."""

from __future__ import annotations

from typing import Any

from spac.config import EngineConfig
from spac.machine.host_memory import available
from spac.model.pair import ModelPair

_MOST = 8 << 30
"""llama.cpp's default."""


def cache_parameters(config: EngineConfig, pair: ModelPair) -> dict[str, Any]:
    """For `_core.Session`: `prompt_cache_bytes`, `n_checkpoints` and `checkpoint_step`."""
    return {
        "prompt_cache_bytes": cache_bytes(config, pair),
        "n_checkpoints": config.ctx_checkpoints,  # made only where they are needed
        "checkpoint_step": config.checkpoint_min_step,
    }


def cache_bytes(config: EngineConfig, pair: ModelPair) -> int:
    """Bytes of host memory for prompts. Where nothing is said, half of what is left beside the models: pages
    of their files look available, and are needed all the same."""
    if config.cache_ram is not None:
        return 2**62 if config.cache_ram < 0 else config.cache_ram << 20
    mapped = [pair.target, pair.draft] if config.load_mode in ("auto", "mmap") else []
    needed = sum(model.n_bytes for model in mapped if model is not None and model not in pair.copied)
    return min(_MOST, max(0, available() - needed) // 2)
