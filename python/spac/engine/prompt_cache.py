"""The prompt cache: parameters for conversations that have left the context."""

from __future__ import annotations

from typing import Any

from spac.config import EngineConfig
from spac.config.context import CACHE_RAM_MOST
from spac.machine.host_memory import available
from spac.model.pair import ModelPair


def cache_parameters(config: EngineConfig, pair: ModelPair) -> dict[str, Any]:
    """Return `_core.ServerLoop`'s parameters `prompt_cache_bytes`, `n_checkpoints` and `checkpoint_step`."""
    return {
        "prompt_cache_bytes": cache_bytes(config, pair),
        "n_checkpoints": config.ctx_checkpoints,  # It makes them only if the memory needs them.
        "checkpoint_step": config.checkpoint_min_step,
    }


def cache_bytes(config: EngineConfig, pair: ModelPair) -> int:
    """Return the bytes of host memory for the prompt cache.

    The default is half of the memory that the models leave. The pages of mapped model files count as
    available memory, but the models need them, so they are subtracted.
    """
    if config.cache_ram is not None:
        return 2**62 if config.cache_ram < 0 else config.cache_ram << 20
    mapped = [pair.target, pair.draft] if config.load_mode in ("auto", "mmap") else []
    needed = sum(model.n_bytes for model in mapped if model is not None)
    return min(CACHE_RAM_MOST << 20, max(0, available() - needed) // 2)
