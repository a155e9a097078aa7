"""Choice of a model's files by name and quantization, as llama.cpp's `-hf` makes it.

This module reads no file and needs no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from spac.errors import InputError

DEFAULTS = ("Q4_K_M", "Q8_0")
"""The quantizations that are looked for if none is named. If there is neither, the first file is taken."""
NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of names of files that are no models of their own."""
MOST_LISTED = 12
"""The largest number of names in an error message."""

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.IGNORECASE)
_TAG = re.compile(r"[-.]([a-z0-9_]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Name:
    """A repository and a quantization in it. An empty `quant` takes llama.cpp's defaults."""

    repo: str
    quant: str = ""

    @classmethod
    def parse(cls, text: str) -> Name:
        """Return the name in a text, or raise InputError if it has another form."""
        if not (match := _NAME.fullmatch(text)) or ".." in text:
            raise InputError(f"'{text}' is not OWNER/REPO or OWNER/REPO:QUANT")
        return cls(match[1], match[2] or "")


@dataclass(frozen=True)
class Model:
    """A model of a repository: its files in order, the parts of a split one, by their paths there."""

    files: tuple[str, ...]
    n_parts: int = 1
    """The number of parts by the files' names. `files` may have fewer."""

    @property
    def stem(self) -> str:
        """The path without the part's number and without .gguf."""
        return _split(self.files[0])[0]

    @property
    def quant(self) -> str:
        """The quantization that the name ends in; "" if there is none."""
        match = _TAG.search(self.stem)
        return match[1].upper() if match else ""


def models_in(files: Iterable[str]) -> list[Model]:
    """Return the models among a repository's files, in the files' order, without projectors and the like."""
    found: dict[tuple[str, int], list[str]] = {}
    for file in files:
        base = PurePosixPath(file).name
        if file.endswith(".gguf") and not any(word in base for word in NO_MODEL):
            stem, _, n_parts = _split(file)
            found.setdefault((stem, n_parts), []).append(file)
    return [Model(tuple(sorted(parts)), n_parts) for (_, n_parts), parts in found.items()]


def choose(name: Name, files: Sequence[str], file: str = "") -> Model:
    """Return the model that a name means among a repository's files.

    `file` is the path of a file, which then decides alone. Raise InputError with one line if there is no such
    model, if several have this quantization, or if a part is missing.
    """
    models = models_in(files)
    if not models:
        raise InputError(f"{name.repo} has no GGUF file of a model: choose a repository that has")
    model = _by_file(name, models, file) if file else _by_quant(name, models)
    if len(model.files) != model.n_parts:
        raise InputError(f"{name.repo} has {len(model.files)} of {model.n_parts} parts of {model.stem}")
    return model


def labels(models: Sequence[Model]) -> list[str]:
    """Return a word for each model: its quantization, or its first file if that tells it from no other."""
    quants = [model.quant for model in models]
    return [
        model.quant if model.quant and quants.count(model.quant) == 1 else model.files[0] for model in models
    ]


def _split(file: str) -> tuple[str, int, int]:
    """Return path without ending, part and number of parts of a file."""
    stem = file.removesuffix(".gguf")
    match = _PART.fullmatch(stem)
    return (match[1], int(match[2]), int(match[3])) if match else (stem, 1, 1)


def _by_file(name: Name, models: Sequence[Model], file: str) -> Model:
    for model in models:
        if file in model.files:
            return model
    there = _listed([model.files[0] for model in models])
    raise InputError(f"{name.repo} has no model file '{file}': it has {there}")


def _by_quant(name: Name, models: Sequence[Model]) -> Model:
    for quant in (name.quant,) if name.quant else DEFAULTS:
        pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
        exact = [model for model in models if model.quant == quant.upper()]
        fitting = exact or [model for model in models if pattern.search(model.files[0])]
        if len(fitting) > 1:
            files = _listed([model.files[0] for model in fitting])
            raise InputError(f"{name.repo} has several models in {quant}: name one with --hf-file: {files}")
        if fitting:
            return fitting[0]
    if not name.quant:
        return models[0]
    raise InputError(f"{name.repo} has no quantization '{name.quant}': it has {_listed(labels(models))}")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_LISTED
    return ", ".join(words[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
