"""Helpers that decode by hand and read a context's nodes through llama.cpp's eval callback."""

from __future__ import annotations

import ctypes
import importlib
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import Float32Array
from spac.model.c_api import Context

api = importlib.import_module("llama_cpp.llama_cpp")  # imported after spac, which chooses the library

CONTEXT: dict[str, Any] = {"n_ctx": 64, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1}
"""Parameters of contexts whose values are compared."""


class Callback:
    """Eval callback that keeps the last values of the named nodes, flat, by name and layer."""

    def __init__(self, *names: str) -> None:
        self.seen: dict[tuple[str, int], npt.NDArray[Any]] = {}
        self._name = re.compile(f"({'|'.join(map(re.escape, names))})-(\\d+)")
        lib = api._lib
        lib.ggml_get_name.argtypes, lib.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
        lib.ggml_nelements.argtypes, lib.ggml_nelements.restype = [ctypes.c_void_p], ctypes.c_int64
        lib.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2
        self._lib = lib
        self._function = api.ggml_backend_sched_eval_callback(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _call(self, tensor: int, ask: bool, _user_data: object) -> bool:
        name = self._name.fullmatch(self._lib.ggml_get_name(tensor).decode())
        if ask or name is None:
            return name is not None
        kind = np.int32 if "topk" in name[1] else np.float32
        values = np.empty(self._lib.ggml_nelements(tensor), kind)
        self._lib.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
        self.seen[name[1], int(name[2])] = values
        return True


def decode(context: Context, tokens: list[int], position: int) -> Float32Array:
    """Evaluate tokens. Return the logits behind the last one, float32 [n_vocab]."""
    batch = api.llama_batch_init(len(tokens), 0, 1)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
        batch.logits[i] = i == len(tokens) - 1
    batch.n_tokens = len(tokens)
    assert api.llama_decode(context.pointer, batch) == 0
    logits = api.llama_get_logits_ith(context.pointer, len(tokens) - 1)
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(api.llama_get_model(context.pointer)))
    api.llama_batch_free(batch)
    return np.array(logits[:n_vocab], np.float32)
