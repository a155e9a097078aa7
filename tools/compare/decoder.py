"""Wrap a context of the library that llama_cpp has loaded in the script's protocol.

This module uses llama_cpp's ctypes functions and not its `Llama` class, because batches, logits flags and
positions are tested here. The same code drives both libraries, so that they are the only difference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llama_cpp as ll
import numpy as np
import numpy.typing as npt

from tools.compare.job import Case, Settings

_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP

# Functions of llama-ext.h, llama.cpp's interface in C++
_OUTPUT_STATES = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_STATE = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"
_PREDICTION_LAYER = "_Z28llama_set_nextn_layer_offsetP13llama_contexti"
_OUTPUT_INPUTS = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_INPUTS = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"


def _staged(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ll.llama_cpp._lib, name)
    function.restype, function.argtypes = result, (ctypes.c_void_p, *arguments)
    return function


def _overrides(values: dict[str, int | float | bool]) -> Any:
    array = (ll.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, value) in zip(array, values.items(), strict=False):
        kind = {bool: "bool", int: "int", float: "float"}[type(value)]
        entry.key, entry.tag = key.encode(), getattr(ll, f"LLAMA_KV_OVERRIDE_TYPE_{kind.upper()}")
        setattr(entry.value, {"bool": "val_bool", "int": "val_i64", "float": "val_f64"}[kind], value)
    return array


class Model:
    """A loaded model. It is on a spac device if `device` is one, else on the CPU alone."""

    def __init__(
        self, case: Case, *, on_device: bool, devices: Sequence[int] = (), placement: int | None = None
    ) -> None:
        """Load the model on these devices, by their addresses, or on those that the library chooses.

        `placement` is the address of llama_model_params.tensor_buft_overrides.
        """
        params = ll.llama_model_default_params()
        if not hasattr(params, "use_extra_bufts"):
            raise RuntimeError("this llama_cpp does not know use_extra_bufts")
        params.n_gpu_layers = case.n_gpu_layers if on_device else 0
        params.load_mode = ll.LLAMA_LOAD_MODE_MMAP if case.use_mmap else ll.LLAMA_LOAD_MODE_NONE
        self._devices = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        self._split = (ctypes.c_float * ll.llama_max_devices())(*case.tensor_split)
        if devices:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p).value
        if case.tensor_split:
            params.tensor_split = self._split
        if placement is not None:
            kind = dict(field[:2] for field in ll.llama_model_params._fields_)["tensor_buft_overrides"]
            params.tensor_buft_overrides = ctypes.cast(placement, kind)
        if case.overrides:
            params.kv_overrides = self._overrides = _overrides(case.overrides)
        # spac's expert store is an extra buffer type, so spac needs the default.
        params.use_extra_bufts = on_device
        params.load_mtp = case.settings.mtp
        self.pointer = ll.llama_model_load_from_file(case.model.encode(), params)
        if not self.pointer:
            raise RuntimeError(f"{case.model} does not load")
        self._adapter = ll.llama_adapter_lora_init(self.pointer, case.lora.encode()) if case.lora else None
        self._scale = case.lora_scale
        self.n_embd = ll.llama_model_n_embd(self.pointer)
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.pointer))
        own = replace(case, model=case.draft, draft="", lora="", overrides={})
        self.draft = Model(own, on_device=on_device) if case.draft else None
        self.draft_reads = case.draft_reads

    def context(self, settings: Settings) -> Context:
        """Return a new context of this model."""
        return Context(self, settings, self._adapter, self._scale)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        if self.draft:
            self.draft.__exit__()
        ll.llama_model_free(self.pointer)


class Context:
    """A `Decoder` over one context and one batch that is reused."""

    predictor: Predictor | None = None

    def __init__(self, model: Model, settings: Settings, adapter: Any, scale: float = 1.0) -> None:
        params = ll.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = settings.n_batch
        params.n_ubatch = settings.n_ubatch
        params.n_threads = params.n_threads_batch = settings.n_threads
        params.flash_attn_type = int(
            settings.flash_attn
        )  # 0 never and 1 always, so that the device does not choose
        params.embeddings = settings.embeddings
        params.pooling_type = 0  # one row for every token
        for name, value in settings.params.items():
            getattr(params, name)  # fails unless the structure has a field of that name
            setattr(params, name, value)
        self._settings = settings
        self.n_vocab = model.n_vocab
        self._read = ll.llama_get_embeddings_ith if settings.embeddings else ll.llama_get_logits_ith
        self._width = model.n_embd if settings.embeddings else model.n_vocab
        self._n_embd = model.n_embd
        self._n_state = ll.llama_cpp._lib.llama_model_n_embd_out(ctypes.c_void_p(model.pointer))
        self.pointer = ll.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise RuntimeError("no context")
        if adapter:
            adapters = (ll.llama_adapter_lora_p_ctypes * 1)(adapter)
            scales = (ctypes.c_float * 1)(scale)
            if ll.llama_set_adapters_lora(self.pointer, adapters, 1, scales):
                raise RuntimeError("the adapter does not apply")
        self._batch = ll.llama_batch_init(settings.n_batch, 0, 1)
        self._draft_reads = model.draft_reads
        if settings.mtp:
            self._output_states(masked=False)
            self.predictor = Predictor(model, settings, {"ctx_type": _MTP})
        elif model.draft:
            for layer in self._draft_reads:
                _staged(_OUTPUT_INPUTS, None, ctypes.c_uint32, ctypes.c_bool)(self.pointer, layer, True)
            self.predictor = Predictor(model.draft, settings, {"ctx_other": self.pointer})

    def decode(
        self, tokens: npt.NDArray[np.int32], position: int, wanted: list[int]
    ) -> npt.NDArray[np.float32]:
        """See `Decoder.decode`. More tokens than n_batch are split, as a program would send a long prompt."""
        rows: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(tokens), self._settings.n_batch):
            piece = tokens[start : start + self._settings.n_batch]
            batch = self._batch
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                batch.token[i] = int(token)
                batch.pos[i] = position + start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i in wanted
            result = ll.llama_decode(self.pointer, batch)
            if result != 0:
                raise RuntimeError(f"llama_decode returned {result} at position {position + start}")
            for i in range(len(piece)):
                if batch.logits[i]:
                    rows.append(self._row(i))
        return np.stack(rows) if rows else np.empty((0, self._width), np.float32)

    def states(self, n: int) -> npt.NDArray[np.float32]:
        """See `Decoder.states`."""
        if not self._draft_reads:
            return np.stack([self._state(i) for i in range(n)])
        read = _staged(_INPUTS, ctypes.POINTER(ctypes.c_float), ctypes.c_uint32)
        layers = [read(self.pointer, layer) for layer in self._draft_reads]
        return np.concatenate([np.ctypeslib.as_array(each, (n, self._n_embd)) for each in layers], axis=1)

    def rewind(self, position: int) -> None:
        """See `Decoder.rewind`."""
        memory = ll.llama_get_memory(self.pointer)
        if position == 0:
            ll.llama_memory_clear(memory, False)
            if self.predictor:
                self.predictor.rewind(0)
        elif not ll.llama_memory_seq_rm(memory, 0, position, -1):
            raise RuntimeError(f"cannot rewind to {position}")

    def save(self) -> bytes:
        """See `Decoder.save`."""
        size = ll.llama_state_seq_get_size(self.pointer, 0)
        data = (ctypes.c_uint8 * size)()
        n = ll.llama_state_seq_get_data(self.pointer, data, size, 0)
        return bytes(data[:n])

    def restore(self, state: bytes) -> None:
        """See `Decoder.restore`."""
        data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if ll.llama_state_seq_set_data(self.pointer, data, len(state), 0) != len(state):
            raise RuntimeError("the state was not taken")

    def shift(self, start: int, end: int, position: int) -> None:
        """See `Decoder.shift`."""
        memory = ll.llama_get_memory(self.pointer)
        if not ll.llama_memory_can_shift(memory) or not ll.llama_memory_seq_rm(memory, 0, start, end):
            raise RuntimeError(f"cannot forget {start} to {end}")
        ll.llama_memory_seq_add(memory, 0, end, position, start - end)

    def _row(self, index: int) -> npt.NDArray[np.float32]:
        return np.ctypeslib.as_array(self._read(self.pointer, index), (self._width,)).copy()

    def _state(self, index: int) -> npt.NDArray[np.float32]:
        read = _staged(_STATE, ctypes.POINTER(ctypes.c_float), ctypes.c_int32)
        return np.ctypeslib.as_array(read(self.pointer, index), (self._n_state,)).copy()

    def _output_states(self, *, masked: bool) -> None:
        """Make the context give hidden states, for all tokens or only for those with logits (`masked`)."""
        _staged(_OUTPUT_STATES, None, ctypes.c_bool, ctypes.c_bool)(self.pointer, True, masked)
        # llama.cpp keeps its plan of the memory, in which deepseek4's later tensors overwrite these states.
        # This makes it plan again.
        _staged(_OUTPUT_INPUTS, None, ctypes.c_uint32, ctypes.c_bool)(self.pointer, 0, False)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        if self.predictor:
            self.predictor.__exit__()
        ll.llama_batch_free(self._batch)
        ll.llama_free(self.pointer)


class Predictor(Context):
    """A context of prediction layers (MTP) or of a draft model, which drafts from a target's hidden states.

    Its rows are logits, and hidden states behind them; DFlash has logits alone.
    """

    def __init__(self, model: Model, settings: Settings, params: dict[str, int]) -> None:
        super().__init__(model, replace(settings, mtp=False, params={**settings.params, **params}), None)
        name = ctypes.create_string_buffer(32)
        ll.llama_model_meta_val_str(model.pointer, b"general.architecture", name, 32)
        self._is_dflash = name.value == b"dflash"
        ll.llama_set_causal_attn(self.pointer, not self._is_dflash)
        self._output_states(masked=True)
        self.n_layer = ll.llama_cpp._lib.llama_model_n_layer_nextn(ctypes.c_void_p(model.pointer))
        for layer in range(self.n_layer):  # spac counts the layers whose graphs it has seen
            self.predict(np.zeros(1, np.int32), np.zeros((1, self._n_state), np.float32), 0, [], layer)
            self.rewind(0)

    def predict(
        self,
        tokens: npt.NDArray[np.int32],
        states: npt.NDArray[np.float32],
        position: int,
        wanted: list[int],
        layer: int = 0,
    ) -> npt.NDArray[np.float32]:
        """See `script.Predictor.predict`."""
        _staged(_PREDICTION_LAYER, None, ctypes.c_int32)(self.pointer, layer)
        if len(tokens) > self._settings.n_batch:
            raise ValueError(f"{len(tokens)} tokens: more than a batch has")
        states = np.ascontiguousarray(states)
        self._batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        try:
            return self.decode(tokens, position, wanted)
        finally:
            self._batch.embd = None  # llama_batch_free would free it

    def read(self, states: npt.NDArray[np.float32], position: int) -> npt.NDArray[np.float32]:
        """See `script.Predictor.read`."""
        n, width = states.shape
        batch = ll.llama_batch_init(4 * n, width, 1)  # M-RoPE has four positions of a token
        batch.n_tokens = n
        ctypes.memmove(batch.embd, np.ascontiguousarray(states).ctypes.data, states.nbytes)
        for i in range(n):
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, not self._is_dflash
            for axis in range(4):
                batch.pos[axis * n + i] = position + i if axis < 3 else 0
        result = (ll.llama_decode if self._is_dflash else ll.llama_encode)(self.pointer, batch)
        ll.llama_batch_free(batch)
        if result != 0:
            raise RuntimeError(f"hidden states at position {position} are not read: {result}")
        return np.empty(0) if self._is_dflash else np.stack([self._state(i) for i in range(n)])

    def _row(self, index: int) -> npt.NDArray[np.float32]:
        logits = super()._row(index)
        return logits if self._is_dflash else np.concatenate([logits, self._state(index)])
