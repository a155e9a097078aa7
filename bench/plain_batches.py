"""Decode batches on the CPU: `python -m bench.plain_batches SYSTEM MODEL THREADS`.

SYSTEM is `spac`, `llama.cpp, repacked` or `llama.cpp, plain`, whose library is that
of LLAMA_CPP_LIB_PATH. For those nothing of spac is imported, because spac brings its own library. The program
prints tokens per second as JSON: of 32 tokens one by one (tg), of batches of 4 (pp4), and of a prompt of 256
(pp256), each from an empty context, with random tokens and the logits of the last one.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import statistics
import sys
import time
from typing import Any

KINDS = {"tg": (32, 1), "pp4": (1, 4), "pp256": (1, 256)}
"""The numbers of batches, and of tokens in a batch."""
REPEATS = {"tg": 2, "pp4": 8, "pp256": 2}


def timed(api: Any, context: int, n_vocab: int) -> dict[str, float]:
    """Return tokens per second of each kind."""
    batch, memory = api.llama_batch_init(256, 0, 1), api.llama_get_memory(context)

    def speed(n_batches: int, size: int) -> float:
        api.llama_memory_clear(memory, True)
        start = time.perf_counter()
        for at in range(0, n_batches * size, size):
            batch.n_tokens = size
            for i in range(size):
                batch.token[i], batch.pos[i] = random.randrange(n_vocab), at + i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, i + 1 == size
            if status := api.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode returned {status}")
            api.llama_synchronize(context)
        return n_batches * size / (time.perf_counter() - start)

    speed(1, 256)  # touches every page
    speed(4, 1)
    return {
        kind: statistics.median(speed(n, size) for _ in range(REPEATS[kind]))
        for kind, (n, size) in KINDS.items()
    }


def worker(system: str, model: str, n_threads: int) -> dict[str, float]:
    """Return the figures of spac or of the library of LLAMA_CPP_LIB_PATH, in this process."""
    if system.startswith("spac"):
        from spac.config import EngineConfig
        from spac.model.pair import ModelPair

        config = EngineConfig(target=model, device="cpu", ctx=1024, threads=n_threads)
        pair = ModelPair(config, None)
        api = importlib.import_module("llama_cpp.llama_cpp")
        return timed(api, pair.target_context.pointer, _n_vocab(api, pair.target.pointer))
    api = importlib.import_module("llama_cpp.llama_cpp")
    quiet = ctypes.CDLL(None).abs  # takes a call and does nothing
    api.llama_log_set(ctypes.cast(quiet, api.llama_log_callback), None)
    api.llama_backend_init()
    options, params = api.llama_model_default_params(), api.llama_context_default_params()
    options.use_extra_bufts = "repacked" in system
    params.n_ctx, params.n_threads, params.n_threads_batch = 1024, n_threads, n_threads
    loaded = api.llama_model_load_from_file(model.encode(), options)
    return timed(api, api.llama_init_from_model(loaded, params), _n_vocab(api, loaded))


def _n_vocab(api: Any, model: int) -> int:
    return int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)))


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
    os._exit(0)  # the library's objects are not freed one by one
