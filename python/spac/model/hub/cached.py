"""The cache of downloaded models, which other tools share (HF_HOME, HF_HUB_CACHE)."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spac.errors import InputError
from spac.model.hub.names import labels, models_in

INSTALL = "run `pip install 'spac[hf]'`"


@dataclass(frozen=True)
class CachedModel:
    """A model of the cache: the name that `-hf` takes, or the one with a file's path, and its first file."""

    name: str
    path: Path


def library() -> Any:
    """Return the package huggingface_hub, or raise InputError if it is not installed."""
    try:
        for module in ("constants", "utils"):  # the package imports its modules late
            importlib.import_module(f"huggingface_hub.{module}")
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError(f"models by name need huggingface_hub: {INSTALL}") from None


def folder(repo: str) -> Path:
    """Return the folder of a repository in the cache, which may not exist."""
    return Path(library().constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def snapshot(repo: str) -> Path | None:
    """Return the folder with the files of a repository's main branch; None if nothing is in the cache."""
    try:
        commit = (folder(repo) / "refs" / "main").read_text().strip()
    except OSError:
        return None
    found = folder(repo) / "snapshots" / commit
    return found if commit and found.is_dir() else None


def cached_models() -> list[CachedModel]:
    """Return the models of the cache with all of their parts, by name."""
    found = []
    for place in sorted(Path(library().constants.HF_HUB_CACHE).glob("models--*--*")):
        repo = "/".join(place.name.split("--", 2)[1:])
        if (files := snapshot(repo)) is None:
            continue
        models = models_in(sorted(path.relative_to(files).as_posix() for path in files.rglob("*.gguf")))
        for label, model in zip(labels(models), models, strict=True):
            if len(model.files) == model.n_parts:
                name = f"{repo}:{label}" if label == model.quant else f"{repo} --hf-file {label}"
                found.append(CachedModel(name, files / model.files[0]))
    return found
