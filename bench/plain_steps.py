"""Decode in a loop of llama.cpp's functions: `python -m bench.plain_steps MODEL PROMPT SAMPLER TOKENS`.

The library is that of LLAMA_CPP_LIB_PATH. Nothing of spac is imported, because spac brings its own library.
The program prints the µs of a step, by part, as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time


def plain(model: str, prompt: str, sampler: str, n: int) -> dict[str, float]:
    """Return the µs of a step of llama.cpp's decode and samplers, by part."""
    api = importlib.import_module("llama_cpp.llama_cpp")
    quiet = ctypes.CDLL(None).abs  # A function of Python's would be called many times a step.
    api.llama_log_set(ctypes.cast(quiet, api.llama_log_callback), None)
    api.llama_backend_init()
    options = api.llama_model_default_params()
    options.n_gpu_layers = 999
    loaded = api.llama_model_load_from_file(model.encode(), options)
    params = api.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 1024, 1, 1
    context = api.llama_init_from_model(loaded, params)
    vocab = api.llama_model_get_vocab(loaded)
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    links = [api.llama_sampler_init_greedy()]
    if sampler == "default":
        links = [
            api.llama_sampler_init_top_k(40), api.llama_sampler_init_top_p(0.95, 1),
            api.llama_sampler_init_min_p(0.05, 1), api.llama_sampler_init_temp(0.8),
            api.llama_sampler_init_dist(1),
        ]  # fmt: skip
    for link in links:
        api.llama_sampler_chain_add(chain, link)
    tokens = (api.llama_token * 256)()
    n_prompt = api.llama_tokenize(vocab, prompt.encode(), len(prompt.encode()), tokens, 256, True, True)
    api.llama_decode(context, api.llama_batch_get_one(tokens, n_prompt))
    one, decode_s = (api.llama_token * 1)(), 0.0
    for i in range(-8, n):
        if i == 0:
            begun, decode_s = time.perf_counter(), 0.0
        one[0] = api.llama_sampler_sample(chain, context, -1)
        before = time.perf_counter()
        api.llama_decode(context, api.llama_batch_get_one(one, 1))
        api.llama_synchronize(context)
        decode_s += time.perf_counter() - before
    step = (time.perf_counter() - begun) * 1e6 / n
    decode = decode_s * 1e6 / n
    return {"step": step, "decode": decode, "sampling": step - decode}


if __name__ == "__main__":
    print(json.dumps(plain(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
