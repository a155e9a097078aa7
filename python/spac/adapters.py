"""LoRA adapters of a target: which files with which weight, checked, loaded, applied, freed."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac.errors import InputError

if TYPE_CHECKING:
    from spac._llama import Context, Model


@dataclass(frozen=True)
class Adapter:
    """An adapter's file, and the factor that it is applied with."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float):
            raise InputError(f"lora: the scale of {self.path} must be a number, not {self.scale!r}")
        if not math.isfinite(self.scale) or abs(self.scale) > 1e6:
            raise InputError(f"lora: the scale of {self.path} is {self.scale}, not -1000000 to 1000000")

    @classmethod
    def of(cls, value: Any) -> Adapter:
        """From itself, a path, or a pair of path and scale."""
        if isinstance(value, Adapter):
            return value
        if isinstance(value, str | os.PathLike):
            return cls(Path(value))
        try:
            path, scale = value
        except (TypeError, ValueError):
            raise InputError(f"lora: {value!r} is neither a file nor a pair of file and scale") from None
        return cls(Path(path), scale)

    @classmethod
    def several(cls, values: Any) -> tuple[Adapter, ...]:
        """From one of these, or a sequence of them."""
        if isinstance(values, str | os.PathLike | Adapter):
            return (cls.of(values),)
        return tuple(map(cls.of, values))

    @classmethod
    def parse(cls, text: str) -> tuple[Adapter, ...]:
        """From `FILE,…`; a file whose own name has a comma is one. Raises InputError."""
        names = [text] if Path(text).exists() else text.split(",")
        return tuple(cls(Path(name)) for name in names)

    @classmethod
    def parse_scaled(cls, text: str) -> tuple[Adapter, ...]:
        """From `FILE:SCALE,…`. Raises InputError."""
        found = []
        for item in text.split(","):
            name, _, scale = item.rpartition(":")
            try:
                found.append(cls(Path(name), float(scale)))
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
                name = ""
            if not name:
                raise InputError(f"'{item}' is not FILE:SCALE") from None
        return tuple(found)


def check_adapter(path: Path) -> None:
    """Looks at what llama.cpp takes on trust in an adapter's file. Raises InputError, one line."""
    from spac.gguf_check import NO_KERNEL
    from spac.gguf_header import HeaderError, read_header

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
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: the LoRA adapter cannot be read: {reason}") from None


def load_adapters(model: Model, adapters: Sequence[Any]) -> None:
    """Load adapters of a model, for its contexts that are made from now on. They are the model's, which frees
    them with itself. Raises InputError or OutOfMemoryError, one line."""
    import llama_cpp.llama_cpp as api

    from spac import _core
    from spac._llama import last_error, refusal

    for adapter in Adapter.several(adapters):
        check_adapter(adapter.path)
        last_error()
        with _core.AbortGuard():
            pointer = api.llama_adapter_lora_init(model.pointer, os.fsencode(adapter.path))
        if not pointer:
            raise refusal(f"{adapter.path}: the LoRA adapter does not fit {model.path.name}")
        model.adapters.append((pointer, float(adapter.scale)))


def apply_adapters(model: Model, context: Context) -> None:
    """Whatever a new context computes, it computes with its model's adapters. Raises as `load_adapters`."""
    import llama_cpp.llama_cpp as api

    from spac import _core
    from spac._llama import last_error, refusal

    if not model.adapters:
        return
    n = len(model.adapters)
    pointers = (api.llama_adapter_lora_p_ctypes * n)(*(pointer for pointer, _ in model.adapters))
    scales = (ctypes.c_float * n)(*(scale for _, scale in model.adapters))
    last_error()
    with _core.AbortGuard():
        failed = api.llama_set_adapters_lora(context.pointer, pointers, n, scales)
        # The memory for them is made when something is decoded: now, for later slots have it.
        token = (api.llama_token * 1)(0)
        failed = failed or api.llama_decode(context.pointer, api.llama_batch_get_one(token, 1))
        api.llama_memory_clear(api.llama_get_memory(context.pointer), True)
    if failed:
        raise refusal(f"{model.path}: llama.cpp could not apply its LoRA adapters")
