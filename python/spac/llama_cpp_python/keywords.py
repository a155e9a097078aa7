"""The keyword arguments of `spac.Llama`: those of llama_cpp, and those of the engine's configuration."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import llama_cpp

from spac.config import EngineConfig
from spac.config.context import POSITIONS
from spac.errors import InputError
from spac.llama_cpp_python.names import NAMED_BY_LLAMA_CPP, OPTIONS
from spac.model.params import ROPE_SCALINGS, context_values

_INIT = inspect.signature(llama_cpp.Llama.__init__)
_FORMER = {"f16_kv", "low_vram", "mul_mat_q", "n_gqa", "n_parts", "rms_norm_eps"}
"""Names that llama_cpp had once and now ignores; LangChain still gives some of them."""


def check_names(options: dict[str, Any]) -> None:
    """Raise InputError for an unknown name. llama_cpp itself would ignore it."""
    for name in sorted(options.keys() - _INIT.parameters.keys() - _FORMER):
        if name in NAMED_BY_LLAMA_CPP:
            raise InputError(f"Llama() has no '{name}': llama_cpp calls it {NAMED_BY_LLAMA_CPP[name]}")
        close = difflib.get_close_matches(name, [*OPTIONS, *_INIT.parameters], n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"beside llama_cpp's, it has {', '.join(OPTIONS)}"
        raise InputError(f"Llama() has no '{name}'; {hint}")


def engine_config(model_path: str, own: dict[str, Any], options: dict[str, Any]) -> EngineConfig:
    """Return the configuration that spac's `own` arguments and llama_cpp's `options` ask for.

    Raise InputError for invalid values.
    """
    n_ctx, n_batch, n_ubatch = (
        options.get(name, _INIT.parameters[name].default) for name in ("n_ctx", "n_batch", "n_ubatch")
    )
    batch = min(n_ctx, n_batch) if n_ctx else n_batch
    return EngineConfig.from_mapping(
        {
            **own,
            **_in_accord(options),
            "target": model_path,
            "ctx": n_ctx,
            "batch": batch,
            "ubatch": min(batch, n_ubatch),
            "threads": options.get("n_threads") or 0,
            "threads_batch": options.get("n_threads_batch") or 0,
        }
    )


def _in_accord(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the draft's context that llama_cpp's arguments for the target imply.

    An argument that spac has no name for applies to the target alone.
    """
    found: dict[str, Any] = {}
    if "flash_attn" in options:  # llama_cpp's default, off, is not a choice.
        found["flash_attn"] = "on" if options["flash_attn"] else "off"
    if options.get("offload_kqv") is not None:
        found["kv_offload"] = bool(options["offload_kqv"])
    if options.get("swa_full") is not None:
        found["swa_full"] = bool(options["swa_full"])
    if (options.get("n_gpu_layers") or 0) > 0:
        found["gpu_layers"] = options["n_gpu_layers"]
    if not options.get("use_mmap", True) or options.get("lora_path") is not None:
        # llama_cpp reads the file without mapping it in both cases.
        found["load_mode"] = "mlock" if options.get("use_mlock") else "none"
    elif options.get("use_mlock"):
        found["load_mode"] = "mmap+mlock"
    if options.get("split_mode") is not None:
        words = {
            llama_cpp.LLAMA_SPLIT_MODE_NONE: "none", llama_cpp.LLAMA_SPLIT_MODE_LAYER: "layer",
            llama_cpp.LLAMA_SPLIT_MODE_ROW: "row",
        }  # fmt: skip
        found["split_mode"] = words.get(options["split_mode"], str(options["split_mode"]))
    for name in ("tensor_split", "main_gpu"):
        if options.get(name) is not None:
            found[name] = options[name]
    scalings = {number: name for name, number in ROPE_SCALINGS.items()}
    if (scaling := scalings.get(options.get("rope_scaling_type", -1))) is not None:
        found["rope_scaling"] = scaling
    for name in POSITIONS:
        if options.get(name) is not None:
            found[name] = options[name]
    if options.get("kv_overrides"):
        found["override_kv"] = options["kv_overrides"]
    return found


def llama_keywords(config: EngineConfig) -> dict[str, Any]:
    """Return llama_cpp's arguments for a target that is set up as the configuration says.

    `Llama.from_config` handles the settings that llama_cpp has no arguments for.
    """
    values = context_values(config, is_draft=False)
    return {
        "n_ctx": config.ctx,
        "n_batch": config.batch,
        "n_ubatch": config.ubatch.least,
        "n_threads": config.threads or None,
        "n_threads_batch": config.threads_batch or config.threads or None,
        "n_gpu_layers": config.gpu_layers.count or 0,
        "use_mmap": config.load_mode in ("auto", "mmap", "mmap+mlock"),
        "use_mlock": "mlock" in config.load_mode,
        "kv_overrides": dict(config.override_kv) or None,
        "type_k": values["type_k"],
        "type_v": values["type_v"],
        "flash_attn": config.flash_attn != "off",
        "offload_kqv": config.kv_offload,
        "swa_full": config.swa_full,
        "rope_scaling_type": values["rope_scaling_type"],
        **{name: values[name] for name in POSITIONS if name in values},
    }
