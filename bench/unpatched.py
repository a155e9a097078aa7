"""Run llama.cpp as published: the unpatched library through llama-cpp-python's ctypes functions.

The library is that of LLAMA_CPP_LIB_PATH. Nothing of spac is imported, because spac brings its own library.
Contexts compute with ggml's persistent thread pool, as llama.cpp's own programs attach it. The unpatched
library has no OpenMP. Where no pool is attached, it makes and ends one for every graph on the CPU. With
`--n-cpu-moe` each layer of experts is such a graph.

`python -m bench cpu_lane` runs this file as a program: python -m bench.unpatched MODEL THREADS plain|repacked
`python -m bench perplexity` runs it with "scores", and writes pieces of text as JSON to its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

BATCH = 2048
MOST_THREADS = 512  # GGML_MAX_N_THREADS
KINDS = {"tg": (32, 1, 2), "pp4": (1, 4, 8), "pp256": (1, 256, 2)}
"""The numbers of batches, of tokens in a batch, and of repeats."""


class _Override(ctypes.Structure):
    """llama.cpp's llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class _PoolParams(ctypes.Structure):
    """ggml's ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * MOST_THREADS), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool),
    )  # fmt: skip


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _user: object) -> None:
    if level == 4:
        print(text.decode(errors="replace"), end="", file=sys.stderr, flush=True)


def start() -> None:
    """Initialize the library, once per process, before anything else."""
    assert "spac" not in sys.modules
    api.llama_log_set(_log, ctypes.c_void_p(0))
    api.llama_backend_init()


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the loaded library that llama-cpp-python does not bind."""
    found = getattr(api._lib, name)
    found.restype, found.argtypes = result, arguments
    return found


def _experts_on_cpu(n_layer: int) -> Any:
    """Return the overrides of --n-cpu-moe: experts of the first layers go into the CPU's plain buffers."""
    plain = _function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    rows = [
        _Override(rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode(), plain)
        for layer in range(n_layer)
    ]
    return (_Override * (n_layer + 1))(*rows, _Override(None, None))


class ThreadPool:
    """Threads that wait for graphs with llama.cpp's default polling.

    The contexts of target and draft share one pool, because they compute in turns. The threads of a second
    pool would still poll while those of the first compute.
    """

    def __init__(self, n_threads: int) -> None:
        """Raise RuntimeError where the library's structure differs, or where it makes no pool."""
        params = _function("ggml_threadpool_params_default", _PoolParams, ctypes.c_int)(n_threads)
        # A field in another place would stay unnoticed, and the pool would poll or sleep wrongly.
        if params.n_threads != n_threads or not 0 < params.poll <= 100 or params.paused:
            raise RuntimeError("ggml_threadpool_params is another structure in this library")
        new = _function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_PoolParams))
        self.n_threads, self._pointer = n_threads, new(ctypes.byref(params))
        if not self._pointer:
            raise RuntimeError(f"ggml makes no pool of {n_threads} threads")

    def attach(self, context: Any) -> None:
        """Let a context compute with this pool, and with all of its threads."""
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        api.llama_set_n_threads(context, self.n_threads, self.n_threads)
        _function("llama_attach_threadpool", None, *arguments)(context, self._pointer, self._pointer)

    def close(self) -> None:
        """End the threads. All contexts have been closed."""
        _function("ggml_threadpool_free", None, ctypes.c_void_p)(self._pointer)


class Decoder:
    """A context that decodes batches of one text."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(api.llama_get_model(context)))
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        for i in range(BATCH):
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, 0
        views = (self._batch.token, self._batch.pos, self._batch.logits)
        self._token, self._pos, self._logits = (np.ctypeslib.as_array(each, (BATCH,)) for each in views)

    def decode(self, tokens: Sequence[int], position: int, *, logits: str = "none") -> None:
        """Evaluate tokens from `position` on, with logits of "none", the "last" of them or "all"."""
        for start in range(0, len(tokens), BATCH):
            piece = tokens[start : start + BATCH]
            n = self._batch.n_tokens = len(piece)
            self._token[:n] = piece
            self._pos[:n] = np.arange(position + start, position + start + n)
            self._logits[:n] = logits == "all"
            if logits == "last" and start + n == len(tokens):
                self._logits[n - 1] = 1
            if status := api.llama_decode(self.context, self._batch):
                raise RuntimeError(f"llama_decode returned {status} at position {position + start}")

    def wait(self) -> None:
        """Wait until the device has done its queued work."""
        api.llama_synchronize(self.context)

    def best(self, row: int) -> int:
        """Return the likeliest token of a row of the last batch (-1: its last row with logits)."""
        # llama_sampler_sample is slower: with a large vocabulary its list of candidates costs more than this.
        logits = api.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())

    def rows(self, n: int) -> np.ndarray:
        """Return float32 [n, n_vocab]: the logits of the last batch."""
        return np.ctypeslib.as_array(api.llama_get_logits(self.context), (n, self.n_vocab))

    @property
    def n_past(self) -> int:
        """The number of tokens that the memory holds."""
        return int(api.llama_memory_seq_pos_max(api.llama_get_memory(self.context), 0)) + 1

    def forget(self, position: int) -> None:
        """Remove what the memory holds from `position` on."""
        api.llama_memory_seq_rm(api.llama_get_memory(self.context), 0, position, -1)


class Model(Decoder):
    """A model and one context of it. All of it is on the device except what `n_cpu_moe` keeps on the CPU."""

    def __init__(
        self, path: str, pool: ThreadPool, *, device: str = "cpu", ctx: int = 1024,
        n_cpu_moe: int | None = None, repack: bool = True, no_host: bool = False, offload: bool = True,
        rows: int = 0,
    ) -> None:  # fmt: skip
        """Load the model. `pool` computes what is on the CPU; it must outlive the model.

        repack: the library may repack the CPU's weights, which rounds differently. no_host: without it, an
        override to the CPU takes the pinned type of buffers beside a GPU, which repacks nothing. offload: the
        device also computes large batches of what is on the CPU. rows: the most rows of logits of a batch; 0:
        as many as tokens.
        """
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0 if device == "cpu" else -1
        if device != "cpu":
            params.split_mode, params.main_gpu = 0, int(re.sub(r"\D", "", device) or 0)
        if n_cpu_moe:
            self._overrides = _experts_on_cpu(n_cpu_moe)
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p).value
        params.use_extra_bufts, params.no_host = repack, no_host
        self.model = api.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"{path} does not load in llama.cpp")
        values = api.llama_context_default_params()
        values.n_ctx, values.n_batch, values.n_ubatch = ctx, BATCH, 512
        values.n_threads = values.n_threads_batch = pool.n_threads
        values.swa_full = False  # as in llama.cpp's programs
        values.op_offload, values.n_outputs_max = offload, rows
        context = api.llama_init_from_model(self.model, values)
        if not context:
            raise RuntimeError(f"{path}: llama.cpp makes no context of {ctx} tokens")
        pool.attach(context)
        super().__init__(context)

    def close(self) -> None:
        """Free the model and its context, and detach from the pool."""
        _function("llama_detach_threadpool", None, ctypes.c_void_p)(self.context)
        api.llama_batch_free(self._batch)
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def batches(decoder: Decoder) -> dict[str, float]:
    """Return tokens per second of each kind, from an empty context, with logits of the last token alone."""

    def speed(n_batches: int, size: int) -> float:
        decoder.forget(0)
        start = time.perf_counter()
        for at in range(0, n_batches * size, size):
            decoder.decode([random.randrange(decoder.n_vocab) for _ in range(size)], at, logits="last")
            decoder.wait()
        return n_batches * size / (time.perf_counter() - start)

    speed(1, 256)  # touches every page
    speed(4, 1)
    return {
        kind: statistics.median(speed(n, size) for _ in range(more))
        for kind, (n, size, more) in KINDS.items()
    }


def scores(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Return the log probability of each token after the first, evaluated in batches of 64 tokens."""
    decoder.forget(0)
    found: list[float] = []
    for at in range(0, len(tokens) - 1, 64):
        following = tokens[at + 1 : at + 65]
        decoder.decode(tokens[at : at + len(following)], at, logits="all")
        rows = decoder.rows(len(following)).astype(np.float64)
        rows -= rows.max(1, keepdims=True)
        chosen = rows[np.arange(len(following)), following] - np.log(np.exp(rows).sum(1))
        found += chosen.tolist()
    return found


def main() -> None:
    """Print the figures as JSON."""
    path, n_threads, form = sys.argv[1:]
    start()
    pool = ThreadPool(int(n_threads))
    if form == "scores":
        pieces, model = json.load(sys.stdin), Model(path, pool, repack=False)
        print(json.dumps([each for piece in pieces for each in scores(model, piece)]), flush=True)
    else:
        print(json.dumps(batches(Model(path, pool, repack=form == "repacked"))), flush=True)
    os._exit(0)  # the library's objects are not freed one by one


if __name__ == "__main__":
    main()
