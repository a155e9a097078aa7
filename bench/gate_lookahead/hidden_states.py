"""What a real model's routers get while it generates, by llama.cpp's evaluation callback; and its routers."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from spac import _library
from spac.errors import InputError

FloatArray = npt.NDArray[np.float32]
_ROUTER = re.compile(r"blk\.(\d+)\.ffn_gate_inp\.weight$")
_NODE = re.compile(r"(ffn_norm|ffn_moe_logits)-(\d+)$")


@dataclass(frozen=True)
class Routers:
    """Of a model's MoE layers whose input is an RMS norm and whose experts are the k highest logits."""

    blocks: tuple[int, ...]
    """The layers' numbers in the file."""
    router: FloatArray  # [L, N, E]
    norm: FloatArray  # [L, E]
    n_used: int

    @classmethod
    def read(cls, path: Path) -> Routers:
        """Raises InputError for models that route otherwise."""
        reader = GGUFReader(path)
        found = {tensor.name: tensor for tensor in reader.tensors}
        blocks = sorted(int(match[1]) for name in found if (match := _ROUTER.match(name)))
        if not blocks:
            raise InputError(f"{path} has no routers: it is no Mixture-of-Experts model")
        biased = any(f"blk.{i}.exp_probs_b.bias" in found for i in blocks)
        if biased or any(f"blk.{i}.ffn_norm.weight" not in found for i in blocks):
            raise InputError(f"{path} does not choose experts by an RMS norm and the highest logits alone")

        def weights(name: str) -> FloatArray:
            tensor = found[name]
            return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)

        architecture = reader.fields["general.architecture"].contents()
        return cls(
            tuple(blocks),
            np.stack([weights(f"blk.{i}.ffn_gate_inp.weight") for i in blocks]),
            np.stack([weights(f"blk.{i}.ffn_norm.weight") for i in blocks]),
            int(reader.fields[f"{architecture}.expert_used_count"].contents()),
        )


class Model:
    """A model on the CPU that shows what its routers get and give for every generated token."""

    def __init__(self, path: Path, routers: Routers, n_ctx: int, n_threads: int) -> None:
        _library.load()
        import llama_cpp

        self._api: Any = llama_cpp
        self._lib = ctypes.CDLL(str(_library.library_path()))
        self._lib.ggml_get_name.restype = ctypes.c_char_p
        self._lib.ggml_get_name.argtypes = [ctypes.c_void_p]
        self._lib.ggml_nbytes.restype = ctypes.c_size_t
        self._lib.ggml_nbytes.argtypes = [ctypes.c_void_p]
        self._lib.ggml_backend_tensor_get.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
        ]  # fmt: skip
        self._seen: dict[tuple[str, int], FloatArray] = {}
        self._blocks = frozenset(routers.blocks)
        self._widths = {"ffn_norm": routers.router.shape[2], "ffn_moe_logits": routers.router.shape[1]}
        llama_cpp.llama_log_set(_silent, None)
        given = llama_cpp.llama_model_default_params()
        given.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), given)
        if not self._model:
            raise InputError(f"{path} cannot be loaded")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, n_ctx, 512
        context.n_threads = context.n_threads_batch = n_threads
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        context.cb_eval = self._callback
        self._context: Any = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise InputError(f"{path} gives no context of {n_ctx} tokens")

    def close(self) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def generate(
        self, prompt: str, n_tokens: int, temperature: float, seed: int
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Of every generated token, the routers' inputs (float32 [L, E]) and logits ([L, N])."""
        api, rng = self._api, np.random.default_rng(seed)
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        tokens = self._tokens(prompt)[: max(1, api.llama_n_ctx(self._context) - n_tokens - 1)]
        for _ in range(n_tokens + 1):
            self._seen.clear()
            array = (ctypes.c_int32 * len(tokens))(*tokens)
            if api.llama_decode(self._context, api.llama_batch_get_one(array, len(tokens))) != 0:
                raise InputError("the model cannot be evaluated")
            if len(tokens) == 1:
                yield self._both()
            logits = np.ctypeslib.as_array(api.llama_get_logits_ith(self._context, -1), (self.n_vocab,))
            tokens = [_sampled(logits, temperature, rng)]

    def _both(self) -> tuple[FloatArray, FloatArray]:
        blocks = sorted(self._blocks)
        inputs = np.stack([self._seen["ffn_norm", block][-1] for block in blocks])
        return inputs, np.stack([self._seen["ffn_moe_logits", block][-1] for block in blocks])

    def _tokens(self, text: str) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 8))()
        n = self._api.llama_tokenize(self._vocab, raw, len(raw), room, len(room), True, False)
        if n <= 0:
            raise InputError("a prompt is empty")
        return list(room[:n])

    def _on_node(self, tensor: Any, ask: bool, _: Any) -> bool:
        match = _NODE.match((self._lib.ggml_get_name(tensor) or b"").decode())
        if match is None or int(match[2]) not in self._blocks:
            return not ask
        if not ask:
            flat = np.empty(self._lib.ggml_nbytes(tensor) // 4, np.float32)
            self._lib.ggml_backend_tensor_get(tensor, flat.ctypes.data, 0, flat.nbytes)
            self._seen[match[1], int(match[2])] = flat.reshape(-1, self._widths[match[1]])
        return True


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(*_: Any) -> None:
    pass


def _sampled(logits: FloatArray, temperature: float, rng: np.random.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    return int((logits / temperature + rng.gumbel(size=len(logits))).argmax())
