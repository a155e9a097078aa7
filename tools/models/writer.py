"""Write a tiny model: metadata, tokenizer, random weights."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tools.models.families import FAMILIES
from tools.models.loader_families import DRAFT_FAMILIES
from tools.models.parts import Tensor
from tools.models.shape import Shape
from tools.models.tokenizer import write_tokenizer
from tools.models.values import add_values, finish
from tools.models.weights import random_weights


def write_model(path: str | os.PathLike[str], family: str, shape: Shape | None = None) -> Path:
    """Write a random-weight GGUF of `family` (a key of `FAMILIES` or `DRAFT_FAMILIES`) and return its path.

    The same family and shape give the same bytes. A tensor's numbers depend on the seed and its own name
    only, so that a variant with other types or one layer more keeps what it shares. Raise ValueError for
    impossible shapes.
    """
    spec = FAMILIES.get(family) or DRAFT_FAMILIES.get(family)
    if spec is None:
        known = sorted({*FAMILIES, *DRAFT_FAMILIES})
        raise ValueError(f"unknown family {family!r}; known: {', '.join(known)}")
    shape = spec.default if shape is None else shape
    unknown = set(shape.options) - set(spec.options)
    if unknown:
        raise ValueError(f"{family} has no option {sorted(unknown)}; it has {sorted(spec.options)}")
    path = Path(path)
    writer = GGUFWriter(path, spec.architecture)
    writer.add_type("model")
    writer.add_name(f"tiny random {family}")
    n_vocab = write_tokenizer(writer, shape.n_vocab)
    add_values(writer, spec.architecture, spec.metadata(shape))
    for tensor in spec.tensors(shape, n_vocab):
        add_tensor(writer, shape, tensor)
    finish(writer)
    return path


def add_tensor(writer: GGUFWriter, shape: Shape, tensor: Tensor) -> None:
    """Add a tensor of random numbers."""
    rng = np.random.default_rng([shape.seed, zlib.crc32(tensor.name.encode())])
    if tensor.kind == "ids":
        rows = [rng.permutation(shape.n_expert)[: tensor.shape[-1]] for _ in range(tensor.shape[0])]
        writer.add_tensor(tensor.name, np.array(rows, np.int32))
        return
    kind = shape.type_of(tensor.name, is_matrix=tensor.kind in ("matrix", "embedding"))
    mean, std = 0.0, tensor.gain
    if tensor.kind in ("matrix", "router"):
        std = tensor.gain / float(np.sqrt(tensor.shape[-1]))
    elif tensor.kind == "norm":
        mean, std = 1.0, 0.1
    elif tensor.kind == "decay":
        mean, std = -1.0, 0.1
    try:
        data = random_weights(rng, tensor.shape, kind, std, mean)
    except ValueError as error:
        raise ValueError(f"{tensor.name}: {error}") from None
    writer.add_tensor(tensor.name, data, raw_dtype=kind)
