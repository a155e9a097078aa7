"""The keyword arguments of `spac.Llama`: llama_cpp's, and those of the engine's configuration."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import fields
from typing import Any

import llama_cpp

from spac.config import EngineConfig
from spac.errors import InputError

_NAMED_BY_LLAMA_CPP = {"target", "ctx", "batch", "ubatch", "threads", "sampling"}
_INIT = inspect.signature(llama_cpp.Llama.__init__)
OPTIONS = tuple(item.name for item in fields(EngineConfig) if item.name not in _NAMED_BY_LLAMA_CPP)
"""The arguments beside llama_cpp's own."""


def check_names(options: dict[str, Any]) -> None:
    """llama_cpp ignores names that it does not know; one that is nearly an option of ours is an error."""
    for name in options.keys() - _INIT.parameters.keys():
        if close := difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.8):
            raise InputError(f"Llama() has no '{name}'; did you mean '{close[0]}'?")


def engine_config(model_path: str, own: dict[str, Any], options: dict[str, Any]) -> EngineConfig:
    """The configuration that spac's `own` arguments and llama_cpp's `options` ask for. Raises InputError."""
    n_ctx, n_batch = options.get("n_ctx", 512), options.get("n_batch", 512)
    batch = min(n_ctx, n_batch) if n_ctx else n_batch
    return EngineConfig.from_mapping(
        {
            **own,
            "target": model_path,
            "ctx": n_ctx,
            "batch": batch,
            "ubatch": min(batch, options.get("n_ubatch", 512)),
            "threads": options.get("n_threads") or 0,
        }
    )
