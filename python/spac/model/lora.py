"""LoRA adapters of a target: checks, loads and applies them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spac import _core
from spac.config.values import Adapter
from spac.errors import InputError
from spac.machine.files import unreadable
from spac.model.c_api import Context, Model, last_error, refusal
from spac.model.gguf.check import NO_KERNEL
from spac.model.gguf.header import HeaderError, read_header


def check_adapter(path: Path) -> None:
    """Check the parts of an adapter's file that llama.cpp trusts. Raises InputError, with one line."""
    try:
        header = read_header(path)
        kind = str(header.metadata.get("general.type", "model"))
        if kind != "adapter":
            raise HeaderError(f"this is a {kind}, not a LoRA adapter", "give it as --target, or --draft")
        if header.data_end > header.file_size:
            raise HeaderError("the file is cut off", "download it again")
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        for tensor in header.tensors:
            if tensor.kind in NO_KERNEL:
                fault = f"tensor {tensor.name!r} has the type {tensor.kind.name}"
                raise HeaderError(fault, "convert it again")
            if tensor.name.endswith(".lora_a"):
                other = shapes.get(tensor.name.removesuffix("a") + "b", tensor.shape)
                if tensor.shape[2:] != other[2:]:
                    raise HeaderError(f"{tensor.name!r} and its other half have not as many experts")
    except HeaderError as fault:
        raise InputError(f"{path}: {fault}") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error, "the LoRA adapter ") from None


def load_adapters(model: Model, adapters: Sequence[Adapter]) -> None:
    """Load adapters of a model, which owns them and frees them with itself.

    Contexts that are made later can apply them. Raises InputError or OutOfMemoryError, with one line.
    """
    for adapter in adapters:
        check_adapter(adapter.path)
        last_error()
        pointer = _core.load_adapter(model.pointer, os.fsencode(adapter.path))
        if not pointer:
            raise refusal(f"{adapter.path}: the LoRA adapter does not fit {model.path.name}")
        model.adapters.append((pointer, float(adapter.scale)))


def apply_adapters(model: Model, context: Context) -> None:
    """Make a new context compute with its model's adapters. Raises the errors of `load_adapters`."""
    if not model.adapters:
        return
    pointers, scales = zip(*model.adapters, strict=True)
    last_error()
    if not _core.apply_adapters(context.pointer, pointers, scales):
        raise refusal(f"{model.path}: llama.cpp could not apply its LoRA adapters")
