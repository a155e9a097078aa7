"""Copy a model with an error that comparisons have to notice."""

from __future__ import annotations

import shutil
from pathlib import Path

from gguf import GGUFReader


def exchange_experts(model: Path, out: Path) -> Path:
    """Copy a model to `out`, with the first two experts of every MoE layer exchanged. Return `out`.

    Routers stay as they are, so tokens of one of the two experts get the other one.
    """
    shutil.copyfile(model, out)
    for tensor in GGUFReader(out, "r+").tensors:
        if "_exps." in tensor.name:
            tensor.data[:2] = tensor.data[[1, 0]]
    return out
