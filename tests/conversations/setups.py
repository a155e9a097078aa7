"""The models and options with which a door is tried: dense, with experts, recurrent, with windows; drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from tests.conversations.door import ASCII, END, OVERFLOW, Setup
from tools.models import FAMILIES, write_model, write_projector

ONE_ALONE = ("images", "images, recurrent")
"""Setups that need the context for one generation at a time, but in llama.cpp's loop."""
IN_THE_LOOP = ("recurrent, ngrams", "recurrent, undone draft")
"""Setups that llama.cpp's loop alone has: it copies the state back where the model cannot undo a draft."""
CONTEXT = 256
"""The tokens of a context, for each generation at once."""
SMALL = {
    "threads": 1, "threads_batch": 1, "batch": 64, "ubatch": 32, "state": "off", "cache_type_k": "f32",
    "cache_type_v": "f32", "cache_type_k_draft": "f32", "cache_type_v_draft": "f32",
    "checkpoint_min_step": 16, "flash_attn": "off",
}  # fmt: skip
SPLIT = {"device": "simulated", "slots": "25%", "scheduler": "lru"}
BARE = {"cache_ram": 0, "ctx_checkpoints": 0}
NGRAMS = {"draft_type": "ngram-simple", "draft_length": 3}
SHORTER = {"draft": "shorter", "draft_length": 3}
OTHER = {"draft": "qwen3", "draft_length": 3}
WHOLE = {"swa_full": True}

SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"device": "cpu", "cache_ram": 16}),
    "dense, draft": ("qwen3", {"device": "cpu", **SHORTER}),
    "experts": ("qwen3moe", {**SPLIT, "cache_ram": 16}),
    "experts, draft": ("qwen3moe", {**SPLIT, **SHORTER, "cache_ram": 16}),
    "experts, ngrams": ("qwen3moe", {**SPLIT, **NGRAMS, "cache_ram": 0}),
    "recurrent": ("qwen3next", {**SPLIT, "cache_ram": 16}),
    "recurrent, bare": ("qwen3next", {**SPLIT, **BARE}),
    "recurrent, few checkpoints": ("lfm2moe", {**SPLIT, "ctx_checkpoints": 2}),
    "recurrent, draft": ("qwen35moe", {**SPLIT, **OTHER, "cache_ram": 16}),
    "recurrent, undone draft": ("qwen3next", {**SPLIT, **OTHER, "cache_ram": 0}),
    "recurrent, ngrams": ("lfm2moe", {**SPLIT, **NGRAMS, "cache_ram": 16}),
    "window": ("gpt-oss", {**SPLIT, "cache_ram": 16}),
    "window, bare": ("gpt-oss", {**SPLIT, **BARE}),
    "window, draft": ("mimo2", {**SPLIT, **SHORTER, "cache_ram": 16}),
    "whole window": ("gpt-oss", {**SPLIT, **WHOLE, "cache_ram": 16}),
    "whole window, draft": ("mimo2", {**SPLIT, **WHOLE, **SHORTER, "cache_ram": 16}),
    "whole window, ngrams": ("gpt-oss", {**SPLIT, **WHOLE, **NGRAMS, "cache_ram": 0}),
    "images": ("qwen3vlmoe", {**SPLIT, "mmproj": "qwen3vl", "cache_ram": 16}),
    "images, recurrent": ("qwen3next", {**SPLIT, "mmproj": "gemma3", "cache_ram": 16}),
}  # fmt: skip
"""A family of tools.models and the options, by name. "shorter" is the target without its last layer."""


class Models:
    """The files of the setups, written when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def setup(self, name: str) -> Setup:
        family, options = SETUPS[name]
        options = {**SMALL, **options}
        if draft := options.get("draft"):
            options["draft"] = self._model(family, 1) if draft == "shorter" else self._model(draft)
        if kind := options.get("mmproj"):
            options["mmproj"] = path = self._folder / f"{kind}.gguf"
            if not path.exists():
                write_projector(path, kind, FAMILIES[family].default.n_embd)
        return Setup(name, self._model(family), options, sees=bool(kind))

    def _model(self, family: str, n_fewer: int = 0) -> Path:
        path = self._folder / f"{family}-{n_fewer}.gguf"
        if not path.exists():
            default = FAMILIES[family].default
            write_model(path, family, replace(default, n_layer=default.n_layer - n_fewer, n_swa=16, types={}))
            change(path)
        return path


def change(path: Path) -> None:
    """Let a model say ASCII and end a text now and then, and let one token overflow."""
    tensors = {each.name: each.data for each in GGUFReader(path, "r+").tensors}
    says, embeds = tensors["output.weight"], tensors["token_embd.weight"]
    says[[i for i in range(len(says)) if i not in ASCII and i != END]] = 0
    embeds[OVERFLOW] = np.inf
    for view in (says, embeds):
        while not isinstance(view, np.memmap):
            view = view.base
        view.flush()
