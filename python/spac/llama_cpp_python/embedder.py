"""Embeddings of texts by a served target, in a context beside the one that generates."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np

from spac import _core
from spac.errors import InputError
from spac.machine.arrays import Float32Array, Int32Array
from spac.model.c_api import Context, Model, last_error, refusal
from spac.model.gguf.header import HeaderError, read_header
from spac.model.lora import apply_adapters
from spac.model.params import POOLINGS


def pooling_of(target: Path) -> str:
    """Return the pooling that a model's file names, a key of `POOLINGS`. Raise InputError for none."""
    try:
        metadata = read_header(target).metadata
    except (HeaderError, OSError, ValueError) as fault:
        raise InputError(f"{target}: {fault}") from None
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    name = next((name for name, number in POOLINGS.items() if number == kind), None)
    if name is None:
        raise InputError(f"{target} names no pooling for embeddings: give --pooling last or --pooling mean")
    return name


class Embedder:
    """Makes embeddings in a context of its own, so that the generating context keeps its conversations."""

    def __init__(self, model: Model, beside: Context, like: ctypes.Structure, pooling: str) -> None:
        """Make the context. Raise InputError or OutOfMemoryError, with one line.

        `like` has the llama_context_params of the generating context, `beside`. A pooling other than "last"
        needs all tokens of a text in one graph, so the context holds no more tokens than a graph does.
        """
        self._model, self._per_graph = model, min(beside.graph_tokens, beside.size)
        self.limit = beside.size if pooling == "last" else self._per_graph
        """The number of tokens of the longest text."""
        fields = {name: getattr(like, name) for name, *_ in like._fields_ if name != "n_samplers"}
        values = {name: value for name, value in fields.items() if isinstance(value, int | float)}
        values |= {
            "n_ctx": self.limit, "n_batch": self._per_graph, "n_ubatch": self._per_graph, "n_seq_max": 1,
            "n_rs_seq": 0, "n_outputs_max": 0, "embeddings": True, "pooling_type": POOLINGS[pooling],
        }  # fmt: skip
        self.context = Context(model, values)
        """The context. The pair that owns the model closes it."""
        try:
            apply_adapters(model, self.context)
        except BaseException:
            self.context.close()
            raise

    def embed(self, tokens: Sequence[int]) -> Float32Array:
        """Return the embedding of 1 to `limit` tokens, float32 [n_embd], of Euclidean length 1.

        Raise SpacError if the library cannot compute it.
        """
        context, given = self.context.pointer, np.array(tokens, np.int32)
        api.llama_memory_clear(api.llama_get_memory(context), True)
        for at in range(0, len(given), self._per_graph):
            self._decode(given[at : at + self._per_graph])
        n_embd = api.llama_model_n_embd_out(self._model.pointer)
        row = api.llama_get_embeddings_seq(context, 0)
        return _normalized(np.ctypeslib.as_array(row, (n_embd,)))

    def _decode(self, tokens: Int32Array) -> None:
        outputs = (ctypes.c_int8 * len(tokens))(*[1] * len(tokens))  # every token takes part in the pooling
        batch = api.llama_batch_get_one(tokens.ctypes.data_as(ctypes.POINTER(api.llama_token)), len(tokens))
        batch.logits = ctypes.cast(outputs, ctypes.POINTER(ctypes.c_int8))
        last_error()
        with _core.AbortGuard():
            failed = api.llama_decode(self.context.pointer, batch)
        _core.synchronize(self.context.pointer)  # raises DeviceError if an RPC server is lost
        if failed:
            raise refusal(f"{self._model.path}: llama.cpp could not compute an embedding")


def _normalized(vector: Float32Array) -> Float32Array:
    """Return a vector of Euclidean length 1; zeros stay zeros. It rounds as llama.cpp's own programs do."""
    length = np.sqrt(np.sum(vector * vector, dtype=np.float64))
    scale = np.float32(1.0 / length if length > 0 else 0.0)
    scaled: Float32Array = vector * scale
    return scaled
