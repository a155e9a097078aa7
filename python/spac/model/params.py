"""Translation of the configuration into fields of llama.cpp's model and context parameters."""

from __future__ import annotations

from typing import Any

from gguf import GGMLQuantizationType

from spac import _core
from spac.config import EngineConfig
from spac.config.context import CACHE_TYPES, POSITIONS

TYPES = {name: int(GGMLQuantizationType[name.upper()]) for name in CACHE_TYPES}
FLASH_ATTENTION = {
    "auto": _core.FLASH_ATTN_AUTO,
    "off": _core.FLASH_ATTN_DISABLED,
    "on": _core.FLASH_ATTN_ENABLED,
}
LOAD_MODES = {
    "auto": _core.LOAD_MODE_AUTO,
    "none": _core.LOAD_MODE_NONE,
    "mmap": _core.LOAD_MODE_MMAP,
    "mlock": _core.LOAD_MODE_MLOCK,
    "mmap+mlock": _core.LOAD_MODE_MMAP_MLOCK,
    "dio": _core.LOAD_MODE_DIRECT_IO,
}
ROPE_SCALINGS = {
    None: _core.ROPE_SCALING_UNSPECIFIED,
    "none": _core.ROPE_SCALING_NONE,
    "linear": _core.ROPE_SCALING_LINEAR,
    "yarn": _core.ROPE_SCALING_YARN,
}
_WITHOUT_STATES = ("draft-simple",)
"""Draft types with a model that read only tokens of the target, and no hidden states."""
_ROW_BY_ROW = ("draft-simple", "draft-mtp")
"""Draft types whose batches need the logits of one token."""
_BLOCKS = ("draft-dflash", "draft-dspark")
"""Draft types that make a whole draft in one batch."""

POOLINGS = {"mean": 1, "cls": 2, "last": 3}
"""llama.cpp's numbers of the ways to make one vector of a text's tokens, by name."""


def model_values(config: EngineConfig, *, is_draft: bool, on_device: bool) -> dict[str, Any]:
    """Return the fields of llama_model_params that the configuration sets."""
    values: dict[str, Any] = {"load_mode": LOAD_MODES[config.load_mode]}
    n_layers = (config.gpu_layers_draft if is_draft else config.gpu_layers).count
    if on_device and n_layers is not None:
        values["n_gpu_layers"] = n_layers
    if config.override_kv:
        values["kv_overrides"] = dict(config.override_kv)
    return values


def context_values(config: EngineConfig, *, is_draft: bool) -> dict[str, Any]:
    """Return the fields of llama_context_params that the configuration sets."""
    key, value = (
        (config.cache_type_k_draft, config.cache_type_v_draft)
        if is_draft
        else (config.cache_type_k, config.cache_type_v)
    )
    values: dict[str, Any] = {
        "type_k": TYPES[key],
        "type_v": TYPES[value],
        "flash_attn_type": FLASH_ATTENTION[config.flash_attn],
        "offload_kqv": config.kv_offload,
        "swa_full": is_draft or config.swa_full,  # a draft rewinds at every step
        "rope_scaling_type": ROPE_SCALINGS[config.rope_scaling],
    }
    for name in POSITIONS:
        if (number := getattr(config, name)) is not None:
            values[name] = number
    return values


def sequence_values(config: EngineConfig, n_sequences: int) -> dict[str, Any]:
    """Return the fields of contexts of several sequences; none for one sequence.

    The sequences share the memory. Under `deterministic`, each has a part of its own, so that its keys lie
    where they would lie without the others.
    """
    return {} if n_sequences == 1 else {"n_seq_max": n_sequences, "kv_unified": not config.deterministic}


def target_rows(config: EngineConfig, n_sequences: int = 1) -> dict[str, Any]:
    """Return the field that limits a target's rows of logits to those of the longest verification.

    By default, llama.cpp has a row for every token of a batch. Nothing is limited if the draft reads the
    target's hidden states. The last layer then computes every token of a prompt, and the smaller context has
    no memory planned for that.
    """
    drafts = [name for name in config.draft_types if name.startswith("draft-")]
    if any(name not in _WITHOUT_STATES for name in drafts):
        return {}
    n_drafted = config.longest_draft if config.draft_types or n_sequences == 1 else 0
    return _rows(config, n_sequences * (n_drafted + 1))


def draft_rows(config: EngineConfig, n_sequences: int = 1) -> dict[str, Any]:
    """Return the fields that limit a draft's rows of logits to those of a batch.

    A batch needs one row for each sequence, or one for each token where a draft is made in one batch.

    A context of `draft-mtp` samples on the device and would allocate the rows twice. The second allocation is
    at its first use, when slots already take the memory.
    """
    drafts = [name for name in config.draft_types if name.startswith("draft-")]
    if any(name in _BLOCKS for name in drafts):
        n = config.longest_draft + 1
        return {**_rows(config, n_sequences * n), "n_outputs_max_per_seq": n}
    return _rows(config, n_sequences) if all(name in _ROW_BY_ROW for name in drafts) else {}


def _rows(config: EngineConfig, n: int) -> dict[str, Any]:
    """Return the field for `n` rows, or nothing if the configuration asks for embeddings."""
    if config.context_params.get("embeddings"):  # embeddings have a row for every token
        return {}
    return {"n_outputs_max": max(n, int(config.context_params.get("n_seq_max", 1)))}
