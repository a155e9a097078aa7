"""Record what goes into and through a dense model's feed-forward blocks while it reads and writes text.

llama.cpp computes. Its callback for evaluated tensors shows the input of each block ("ffn_norm"), and the
values of the neurons before the last matrix ("ffn_swiglu").
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spac.errors import SpacError
from spac.model.c_api import Context, Model

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

Array = np.ndarray[Any, np.dtype[Any]]
LENGTH = 112
"""The most tokens of each text, with what the model adds."""
_TEMPERATURE, _TOP = 0.8, 40
_NAMES = ("ffn_norm", "ffn_swiglu")


class Recorder:
    """The inputs and the neurons of all layers, token by token."""

    def __init__(self, n_layer: int) -> None:
        self._parts: dict[str, list[list[Array]]] = {name: [[] for _ in range(n_layer)] for name in _NAMES}
        self._name, self._size, self._get = (
            _function(name, result, *arguments)
            for name, result, *arguments in (
                ("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p),
                ("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p),
                (
                    "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                    ctypes.c_size_t,
                ),
            )
        )  # fmt: skip
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
        self._kept = kind(self._see)

    @property
    def callback(self) -> int:
        """The address of the function for llama_context_params.cb_eval."""
        return ctypes.cast(self._kept, ctypes.c_void_p).value or 0

    def _see(self, tensor: int, asks: bool, _user: object) -> bool:
        match = re.fullmatch(r"(ffn_norm|ffn_swiglu)-(\d+)", self._name(tensor).decode())
        if match and not asks:
            values = np.empty(self._size(tensor) // 4, np.float32)
            self._get(tensor, values.ctypes.data, 0, values.nbytes)
            self._parts[match[1]][int(match[2])].append(values.astype(np.float16))
        return match is not None or not asks

    def layer(self, layer: int, width: int) -> tuple[Array, Array]:
        """Return a layer's inputs, float32 [T, width], and neurons, float32 [T, N], in one order."""
        inputs, neurons = (np.concatenate(parts[layer]).astype(np.float32) for parts in self._parts.values())
        inputs = inputs.reshape(-1, width)
        return inputs, neurons.reshape(len(inputs), -1)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the loaded library that llama-cpp-python does not bind."""
    found = getattr(api._lib, name)
    found.restype, found.argtypes = result, arguments
    return found


def record(path: Path, n_layer: int, texts: Sequence[str], threads: int) -> Recorder:
    """Read each of `texts` and let the model continue it, up to LENGTH tokens, all texts at once."""
    recorder, rng, n = Recorder(n_layer), np.random.default_rng(0), len(texts)
    model = Model(path, (), {"use_extra_bufts": False})
    counts = {"n_batch": n, "n_ubatch": n, "n_seq_max": n, "n_threads": threads, "n_threads_batch": threads}
    context = Context(model, {**counts, "n_ctx": n * 128, "cb_eval": recorder.callback})
    prompts = [model.tokenize(text)[:LENGTH].tolist() for text in texts]
    tokens, batch = {i: prompt[0] for i, prompt in enumerate(prompts)}, api.llama_batch_init(n, 0, 1)
    for position in range(LENGTH):
        batch.n_tokens = len(tokens)
        for row, (i, token) in enumerate(tokens.items()):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, i
        if api.llama_decode(context.pointer, batch):
            raise SpacError(f"llama.cpp did not decode position {position} of the texts")
        logits = np.ctypeslib.as_array(api.llama_get_logits(context.pointer), (len(tokens), model.n_tokens))
        written = dict(zip(tokens, _sampled(logits, rng).tolist(), strict=True))
        read = {i: prompts[i][position + 1] for i in tokens if position + 1 < len(prompts[i])}
        tokens = {
            i: token for i, token in written.items() if i not in read and not model.is_end(token)
        } | read
        if not tokens:
            break
    api.llama_batch_free(batch)
    context.close()
    model.close()
    return recorder


def _sampled(logits: Array, rng: np.random.Generator) -> Array:
    """Return a token for each row, sampled from its likeliest ones."""
    best = np.argpartition(logits, -_TOP, axis=-1)[:, -_TOP:]
    noise = rng.gumbel(size=best.shape)
    choice = (np.take_along_axis(logits, best, -1) / _TEMPERATURE + noise).argmax(-1)
    return np.take_along_axis(best, choice[:, None], -1)[:, 0]
