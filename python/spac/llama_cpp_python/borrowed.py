"""Targets that llama-cpp-python loads and owns."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as api

from spac.config import EngineConfig
from spac.config.overrides import Value
from spac.errors import InputError
from spac.model.c_api import Context, Model
from spac.model.c_api import _Owned as Owned
from spac.model.lora import apply_adapters, load_adapters
from spac.model.pair import LoadRequest
from spac.model.thread_pool import SharedPool, place


class BorrowedModel(Model):
    """A model that its owner frees, so this object does not."""

    def __init__(self, path: Path, pointer: Any) -> None:
        Owned.__init__(self)
        self.path, self.adapters, self._pointer = path, [], pointer

    def _free(self, pointer: Any) -> None:
        pass


class BorrowedContext(Context):
    """A context that its owner frees, so this object does not."""

    def __init__(self, pointer: Any) -> None:
        Owned.__init__(self)
        self._pointer = pointer

    def _free(self, pointer: Any) -> None:
        pass


def apply(params: ctypes.Structure, values: Mapping[str, Any]) -> None:
    """Set fields of a structure of llama_cpp's parameters. Raise InputError for an unknown name."""
    known = [name for name, *_ in params._fields_]
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{type(params).__name__} has no '{name}'; it knows: {', '.join(known)}")
        setattr(params, name, _as_array(value) if name == "kv_overrides" else value)


def _as_array(values: Mapping[str, Value]) -> Any:
    """Return an array for llama_model_params.kv_overrides, which ends with an empty key."""
    array = (api.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, value) in zip(array, values.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, bool):  # before int, because a bool is also an int
            entry.tag, entry.value.val_bool = api.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            entry.tag, entry.value.val_i64 = api.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            entry.tag, entry.value.val_f64 = api.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        else:
            entry.tag, entry.value.val_str = api.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return array


@dataclass(frozen=True)
class Fields:
    """The fields that llama-cpp-python's parameters need beside its own to load the target."""

    model: dict[str, Any]
    context: dict[str, Any]
    for_loop: bool = True
    """True if the loop of llama.cpp's server computes with the context."""
    devices: Any = None
    """The array of devices to which `model` points."""

    @classmethod
    def of(cls, request: LoadRequest) -> Self:
        """Return the fields of a request, with addresses and arrays as ctypes takes them."""
        model, devices = dict(request.model), None
        parts = model.pop("layer_split", ())
        if handles := request.placement.handles():
            devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
            model["devices"] = ctypes.cast(devices, ctypes.c_void_p).value
            split = (ctypes.c_float * api.llama_max_devices())(*parts)
            model |= {"split_mode": api.LLAMA_SPLIT_MODE_LAYER, "main_gpu": 0, "tensor_split": split}
        if (entries := model.get("tensor_buft_overrides")) is not None:
            kind = dict(field[:2] for field in api.llama_model_params._fields_)["tensor_buft_overrides"]
            model["tensor_buft_overrides"] = ctypes.cast(entries, kind)
        return cls(model, request.context, devices=devices)


def with_pool(context: Any) -> SharedPool:
    """Return a thread pool for a context that has another owner; close it after the context."""
    borrowed, pool = BorrowedContext(context), SharedPool(cpu_alone=True)
    place(borrowed.threads)
    pool.attach(borrowed)
    return pool


def adapt(config: EngineConfig, model: Model, context: Context) -> None:
    """Give the configuration's adapters to a model and a context that have another owner."""
    load_adapters(model, config.lora)
    apply_adapters(model, context)
