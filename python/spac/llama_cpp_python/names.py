"""The names of the arguments that spac adds to `llama_cpp.Llama`. They are known without llama_cpp."""

from __future__ import annotations

from dataclasses import fields

from spac.config import EngineConfig
from spac.config.context import POSITIONS, ContextConfig

NAMED_BY_LLAMA_CPP = {
    "target": "model_path",
    "ctx": "n_ctx",
    "batch": "n_batch",
    "ubatch": "n_ubatch",
    "threads": "n_threads",
    "threads_batch": "n_threads_batch",
    "sampling": "temperature and so on, with every call",
    "gpu_layers": "n_gpu_layers",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "kv_offload": "offload_kqv",
    "load_mode": "use_mmap and use_mlock",
    "rope_scaling": "rope_scaling_type",
    "override_kv": "kv_overrides",
}
"""The settings that are arguments of llama_cpp, with their names there."""
_SHARED = {
    *NAMED_BY_LLAMA_CPP,
    *POSITIONS,
    "flash_attn",
    "swa_full",
    "split_mode",
    "tensor_split",
    "main_gpu",
}
_BASIC = {item.name for item in fields(ContextConfig)}
OPTIONS = tuple(
    sorted((item.name for item in fields(EngineConfig) if item.name not in _SHARED), key=_BASIC.__contains__)
)
"""The names of the arguments that spac adds to llama_cpp's own."""
