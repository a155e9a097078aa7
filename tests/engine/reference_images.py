"""Continue prompts with images on the unpatched library: ``python -m tests.engine.reference_images JOBS.json
OUT.npz``.

JOBS.json has a list of [model, projector, prompt, images, tokens to generate]. OUT.npz has the greedy tokens
"tokens<i>" and the logits of the last one "logits<i>" of each job. LLAMA_CPP_LIB_PATH names the library's
folder, and MTMD_CPP_LIB a folder in which it is called libmtmd.so.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp as ll
import numpy as np
from llama_cpp import mtmd_cpp as mtmd

SIZES = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "n_threads": 1, "n_threads_batch": 1}


def decode(context: Any, tokens: list[int], pos: int) -> int:
    """Evaluate tokens from position `pos` on, with logits for the last one; return the next position."""
    batch = ll.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, pos + i, 1, 0
        batch.logits[i] = i == len(tokens) - 1
    assert ll.llama_decode(context, batch) == 0
    ll.llama_batch_free(batch)
    return pos + len(tokens)


def chunks_of(projector: Any, prompt: str, images: list[str]) -> Any:
    """Return the chunks of a prompt in which the default marker stands for each image."""
    bitmaps = []
    for path in images:
        data = Path(path).read_bytes()
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmaps.append(mtmd.mtmd_helper_bitmap_init_from_buf(projector, buffer, len(data), False))
    text = mtmd.mtmd_input_text(prompt.encode(), len(prompt.encode()), True, True)
    chunks = mtmd.mtmd_input_chunks_init()
    given = (mtmd.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
    assert mtmd.mtmd_tokenize(projector, chunks, ctypes.byref(text), given, len(bitmaps)) == 0
    return chunks


def continued(model: Any, projector: Any, prompt: str, images: list[str], n: int) -> tuple[list[int], Any]:
    """Return the greedy tokens after the prompt, and the logits that the last one was chosen by."""
    params = ll.llama_context_default_params()
    for name, value in SIZES.items():
        setattr(params, name, value)
    context = ll.llama_init_from_model(model, params)
    chunks, pos = chunks_of(projector, prompt, images), 0
    for i in range(mtmd.mtmd_input_chunks_size(chunks)):
        chunk = mtmd.mtmd_input_chunks_get(chunks, i)
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = ctypes.c_size_t()
            found = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            tokens = [found[at] for at in range(count.value)]
            pos = decode(context, tokens, pos)
        else:
            end = ll.llama_pos()
            done = mtmd.mtmd_helper_eval_chunk_single(
                projector, context, chunk, pos, 0, 512, False, ctypes.byref(end)
            )
            assert done == 0
            pos = end.value
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    made: list[int] = []
    while len(made) < n:
        pos = decode(context, made[-1:], pos) if made else pos
        logits = np.ctypeslib.as_array(ll.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
        made.append(int(logits.argmax()))
    ll.llama_free(context)
    return made, logits


def main(jobs: str, out: str) -> None:
    ll.llama_backend_init()
    arrays = {}
    for i, (model_path, projector_path, prompt, images, n) in enumerate(json.loads(Path(jobs).read_text())):
        params = ll.llama_model_default_params()
        params.n_gpu_layers = 0
        model = ll.llama_model_load_from_file(model_path.encode(), params)
        options = mtmd.mtmd_context_params_default()
        options.use_gpu, options.n_threads = False, 1
        projector = mtmd.mtmd_init_from_file(projector_path.encode(), model, options)
        arrays[f"tokens{i}"], arrays[f"logits{i}"] = continued(model, projector, prompt, images, n)
        mtmd.mtmd_free(projector)
        ll.llama_model_free(model)
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
