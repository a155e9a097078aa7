"""Helpers that decode by hand."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from spac.machine.arrays import Float32Array
from spac.model.c_api import Context

api = importlib.import_module("llama_cpp.llama_cpp")  # imported after spac, which chooses the library

CONTEXT: dict[str, Any] = {"n_ctx": 64, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1}
"""Parameters of contexts whose values are compared."""


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
