"""The pair of an engine whose target llama-cpp-python loads and owns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from spac.config import EngineConfig
from spac.config.overrides import Value
from spac.errors import InputError
from spac.model.c_api import Context, Model
from spac.model.c_api import _Owned as Owned
from spac.model.gguf.check import check_model
from spac.model.gguf.info import ModelInfo
from spac.model.lora import apply_adapters, load_adapters
from spac.model.paging import is_paged
from spac.model.pair import ModelPair
from spac.model.params import LOAD_MODES, context_values, model_values, sequence_values
from spac.model.thread_pool import SharedPool, place


class LentModel(Model):
    """A model that its owner frees, so this object does not."""

    def __init__(self, path: Path, pointer: Any) -> None:
        Owned.__init__(self)
        self.path, self.adapters, self._pointer = path, [], pointer

    def _free(self, pointer: Any) -> None:
        pass


class LentContext(Context):
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
class Placement:
    """The fields that llama-cpp-python's parameters need beside its own to load the target."""

    model_params: dict[str, Any]
    context_params: dict[str, Any]
    threads: int
    """The number of threads for a token; 0 leaves it to llama-cpp-python."""
    prompt_threads: int
    """The number of threads for a prompt; 0 leaves it to llama-cpp-python."""
    for_loop: bool = True
    """True if the loop of llama.cpp's server computes with the context."""


def placed(
    config: EngineConfig,
    threads: tuple[int, int],
    model: dict[str, Any],
    context: dict[str, Any],
    *,
    exact: bool,
) -> Placement:
    """Return the placement that has the pair's own fields, `model` and `context`.

    With `exact`, the target gets the configuration's fields too. `threads` has the numbers of threads for a
    token and for a prompt.
    """
    if exact:
        model = {**model_values(config, is_draft=False, on_device="devices" in model), **model}
        context = {**context_values(config, is_draft=False), **context}
    return Placement({**model, **config.model_params}, {**context, **config.context_params}, *threads)


def with_pool(context: Any) -> SharedPool:
    """Return a thread pool for a context that has another owner; close it after the context."""
    lent, pool = LentContext(context), SharedPool(cpu_alone=True)
    place(lent.threads)
    pool.attach(lent)
    return pool


def adapt(config: EngineConfig, model: Model, context: Context) -> None:
    """Give the configuration's adapters to a model and a context that have another owner."""
    load_adapters(model, config.lora)
    apply_adapters(model, context)


Load = Callable[[Placement], tuple[Any, Any]]
"""A function that loads the target and returns its llama_model and its llama_context."""


class LentPair(ModelPair):
    """A pair that gets its target from `load` and loads its draft itself.

    `info` describes the target. With `exact`, the configuration sets up the target. Otherwise, llama_cpp's
    own arguments set up the target, and the configuration sets up the draft.
    """

    def __init__(
        self,
        config: EngineConfig,
        load: Load,
        *,
        info: ModelInfo,
        exact: bool = False,
        all_rows: bool = True,
    ) -> None:
        self._lend, self.info, self._exact = load, info, exact
        super().__init__(config, None, all_rows=all_rows)
        del self._lend  # It usually belongs to the owner of this pair.

    def _load(self) -> None:
        config, draft = self._config, None
        if (draft_file := self._draft_file) is not None:
            draft = check_model(draft_file, "draft", config.override_kv)
        # A model without experts stays where llama-cpp-python's own arguments put it.
        self._has_experts = self.info.is_moe
        self.devices, self.device = self._choose_devices() if self._has_experts else ((), None)
        self._fit_to_cpu(self.info, draft)
        self._note_device()
        self._connect(self.info)
        pages = is_paged(config, self._rest(self.info), self.device)
        with self._whole_if_it_fits(self.info, draft, pages=pages):
            self._borrow(draft)

    def _borrow(self, draft: ModelInfo | None) -> None:
        config, types = self._config, self._config.draft_types
        needs_draft = any(name.startswith("draft-") for name in types)
        self._place_slots(self.info, draft)
        handles = self._handles
        devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
        model_params: dict[str, Any] = {"load_mtp": "draft-mtp" in types and draft is None}
        slot_entries = None
        if self.device is not None:
            slot_fields, parts, slot_entries = self._slot_fields()
            split = (ctypes.c_float * api.llama_max_devices())(*(parts or config.tensor_split or ()))
            model_params |= {"split_mode": api.LLAMA_SPLIT_MODE_LAYER, "main_gpu": 0, "tensor_split": split}
            model_params |= _as_pointers(slot_fields)
        model_params |= _as_pointers(self._remote_fields())
        if handles:
            model_params["devices"] = ctypes.cast(devices, ctypes.c_void_p).value
        if self.paged:
            model_params["load_mode"] = LOAD_MODES["mmap"]  # The mode "auto" does not map on every device.
        self.n_sequences = self._wanted_sequences()
        context_params = {**self._target_rows, **sequence_values(config, self.n_sequences)}
        threads = (self.threads, self.prompt_threads)
        placement = placed(config, threads, model_params, context_params, exact=self._exact)
        copying = self._copying(self.info, placement.model_params)
        with copying.scope(paged=self.paged) as scope, self._room_for_prompts(scope.experts):
            model, context = self._lend(placement)
        del slot_entries  # The library has read them.
        self.target = self._keep(LentModel(Path(config.target), model))
        self._note_copy(self.target, copying)
        self.n_sequences = self._sequences()
        self.target_context = self._keep(LentContext(context))
        self.pool = self._new_pool()  # The context computes with it, so the context's owner closes it.
        if self.pool is not None:
            self.pool.attach(self.target_context)
        experts = scope.experts if self.device is not None else None
        self.experts = experts if experts is not None and experts.n_layer > 0 else None
        adapt(config, self.target, self.target_context)
        self._note_paging(self.info)
        self._note_pinning()
        self._note_layers()
        self._note_context()
        self._note_mtp()
        self.draft = self._open_draft(draft)
        self._check_pair()
        self._open_projector(self.info.n_embd)
        with self._room_for_prompts(self.experts):  # The draft may be the target's extra layers.
            self.draft_context = self._open_draft_context() if needs_draft else None


def _as_pointers(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of llama_model_params with places of tensors as ctypes takes them."""
    if (entries := fields.get("tensor_buft_overrides")) is not None:
        kind = dict(field[:2] for field in api.llama_model_params._fields_)["tensor_buft_overrides"]
        fields["tensor_buft_overrides"] = ctypes.cast(entries, kind)
    return fields
