"""Write a twin: the header first, then tensors side by side, each a piece at a time."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import spac  # noqa: F401 - chooses the library

# isort: split
import llama_cpp.llama_cpp as api
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape

from tools.models import FAMILIES
from tools.models.parts import Tensor
from tools.models.values import add_value
from tools.models.weights import random_blocks, random_weights
from tools.twin.catalog import Named
from tools.twin.chain import Chain
from tools.twin.drift import Drift
from tools.twin.vocabulary import Vocabulary, make_vocabulary

MIXES = ("q4_k_m", "q8_0", "f16", "mxfp4")
FILE_TYPES = {"q4_k_m": 15, "q8_0": 7, "f16": 1, "mxfp4": 38}
"""Values of general.file_type, llama.cpp's llama_ftype."""

_SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # used where a row is not whole blocks of 256

PIECE = 1 << 23  # numbers made at a time: 5 to 60 MB, and several times that where they are quantized
QUANTIZED_AT_A_TIME = 3
PERTURBATION = 0.5
"""The sum of what all layers add to the residual stream, as a share of the embedding."""
ROUTER = 1.5  # standard deviation of router logits
_CHAINED = re.compile(r"token_embd\.weight|(.*\.shared_head_head|output)\.weight")
_OUTPUTS = re.compile(r"\.(attn_output(_b)?|ssm_out|ffn_down\w*)\.weight$")
_PLAIN = ("norm", "bias", "router", "decay")

api._lib.ggml_quantize_chunk.argtypes = [
    ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p,
]  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """One of `MIXES` for a model of that many layers, and of 0 or more than 8 experts.

    It chooses the ggml type of every tensor, by the rules that llama.cpp quantizes files with.
    """

    name: str
    n_layer: int

    def type_of(self, tensor: Tensor) -> GGMLQuantizationType:
        """Return the type of a tensor. Norms, biases and routers are F32, and lists of experts I32."""
        if tensor.kind == "ids":
            return GGMLQuantizationType.I32
        if tensor.kind in _PLAIN or len(tensor.shape) == 1:
            return GGMLQuantizationType.F32
        wanted = self._q4_k_m(tensor.name) if self.name == "q4_k_m" else self.name.upper()
        if self.name == "mxfp4" and "_exps." not in tensor.name:
            wanted = "Q8_0"
        for choice in (wanted, _SMALLER.get(wanted, wanted)):
            if tensor.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType[choice]][0] == 0:
                return GGMLQuantizationType[choice]
        return GGMLQuantizationType.F16

    def _q4_k_m(self, name: str) -> str:
        """Return Q4_K, with more bits for the head, and for values and down projections in some layers."""
        if name == "output.weight":
            return "Q6_K"
        if re.search(r"\.(attn_(v|qkv|kv_b)|ffn_down(_exps|_shexp)?)\.", name) and self._more_bits(name):
            return "Q6_K"
        return "Q4_K"

    def _more_bits(self, name: str) -> bool:
        layer, eighth = int(name.split(".")[1]), self.n_layer // 8
        return layer < eighth or layer >= 7 * self.n_layer // 8 or (layer - eighth) % 3 == 2


@dataclass(frozen=True)
class Twin:
    """A twin to write. `agreement`: the share of tokens whose successor the model knows (1 for a target), and
    `prediction` the share for its prediction layer. Without weights the file has a hole in their place."""

    name: str
    model: Named
    mix: str
    drift: Drift
    seed: int = 0
    agreement: float = 1.0
    prediction: float = 1.0
    has_weights: bool = True


def write_twin(path: str | os.PathLike[str], twin: Twin, n_threads: int = 0) -> Path:
    """Write the file and return its path. Memory stays below 2 GB whatever the model's size (16 threads).

    n_threads: the number of threads that make weights; 0: one per core. The same twin gives the same bytes
    with any number. Raise ValueError for a twin that is impossible.
    """
    shape = twin.model.shape
    vocabulary = make_vocabulary(shape.n_vocab, twin.seed)
    mix = Mix(twin.mix, shape.n_layer)
    sized = []
    for tensor in twin.model.tensors():
        kind = mix.type_of(tensor)
        sized.append((tensor, kind, int(np.prod(quant_shape_to_byte_shape(tensor.shape, kind)))))
    logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
    writer = GGUFWriter(path, FAMILIES[twin.model.family].architecture)
    _write_metadata(writer, twin, vocabulary)
    for tensor, kind, n_bytes in sized:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), n_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    out.flush()
    end, file = out.tell(), out.fileno()
    if not twin.has_weights:
        os.truncate(file, end + sum(GGUFWriter.ggml_pad(n, writer.data_alignment) for *_, n in sized))
        writer.close()
        return Path(path)
    chain, predicted = (
        Chain(vocabulary, shape.n_embd, twin.drift, twin.seed, share)
        for share in (twin.agreement, twin.prediction)
    )
    with ThreadPoolExecutor(n_threads or os.cpu_count() or 1) as pool, ThreadPoolExecutor(2) as chains:
        jobs = []
        for tensor, kind, n_bytes in sized:
            if _CHAINED.fullmatch(tensor.name):
                own = predicted if "nextn" in tensor.name else chain
                jobs.append(
                    chains.submit(_write_chained, file, end, _chained_pieces(tensor, kind, own), pool)
                )
            elif tensor.name.endswith(".eh_proj.weight"):
                # A prediction layer goes on from the token's embedding, and leaves the target's state out.
                jobs.append(pool.submit(_write, file, end, iter([partial(_identity, tensor, kind)])))
            else:
                jobs.append(pool.submit(_write, file, end, _random_pieces(tensor, kind, twin)))
            end += GGUFWriter.ggml_pad(n_bytes, writer.data_alignment)
        os.truncate(file, end)
        for job in jobs:
            job.result()
    writer.close()
    return Path(path)


def _identity(tensor: Tensor, kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    return quantize(np.eye(*tensor.shape, dtype=np.float32), kind)


def quantize(numbers: npt.NDArray[np.float32], kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Return uint8 [rows, bytes] of float32 [rows, columns]. Columns have to be whole blocks."""
    made = np.empty(quant_shape_to_byte_shape(numbers.shape, kind), np.uint8)
    numbers = np.ascontiguousarray(numbers)
    api._lib.ggml_quantize_chunk(kind, numbers.ctypes.data, made.ctypes.data, 0, *numbers.shape, None)
    return made


def random_numbers(
    rng: np.random.Generator, n_number: int, kind: GGMLQuantizationType, std: float
) -> npt.NDArray[np.generic]:
    """Return that many random numbers. Those of quantized types are random bytes with fitting scales."""
    plain = kind.name in ("F32", "F16", "BF16")
    return (random_weights if plain else random_blocks)(rng, (n_number,), kind, std)


Piece = Callable[[], npt.NDArray[Any]]


def _write(file: int, place: int, pieces: Iterator[Piece]) -> None:
    """Write piece after piece."""
    for piece in pieces:
        place += _put(file, place, piece())


def _write_chained(file: int, place: int, pieces: Iterator[Piece], pool: ThreadPoolExecutor) -> None:
    """Write rows that have to be made in order, while the pool quantizes those before."""
    begun: deque[Future[npt.NDArray[Any]]] = deque()
    for piece in pieces:
        begun.append(pool.submit(piece))
        if len(begun) == QUANTIZED_AT_A_TIME:
            place += _put(file, place, begun.popleft().result())
    for each in begun:
        place += _put(file, place, each.result())


def _put(file: int, place: int, piece: npt.NDArray[Any]) -> int:
    """Write at a place of the file. Return the number of bytes."""
    rest = memoryview(np.ascontiguousarray(piece)).cast("B")
    n_bytes = len(rest)
    while rest:
        written = os.pwrite(file, rest, place)
        rest, place = rest[written:], place + written
    return n_bytes


def _write_metadata(writer: GGUFWriter, twin: Twin, vocabulary: Vocabulary) -> None:
    drift = twin.drift
    writer.add_type("model")
    writer.add_name(f"synthetic twin of {twin.name}")
    writer.add_description("synthetic weights of a real model's shapes, for measuring; writes made-up words")
    writer.add_file_type(FILE_TYPES[twin.mix])
    values: dict[str, Any] = {f"{writer.arch}.{k}": v for k, v in twin.model.family_metadata().items()}
    values |= {"twin.chain": vocabulary.n_chain, "twin.agreement": float(twin.agreement)}
    values |= {"twin.drift.share": float(drift.share), "twin.drift.persistence": float(drift.persistence)}
    values |= {"twin.drift.skew": float(drift.skew), "twin.seed": twin.seed}
    for key, value in values.items():
        add_value(writer, key, value)
    vocabulary.write(writer, twin.model.pre)


def _chained_pieces(tensor: Tensor, kind: GGMLQuantizationType, chain: Chain) -> Iterator[Piece]:
    """Yield functions that quantize the embedding's or the head's rows, some at a time. They may be called in
    any order."""
    n_rows = max(1, PIECE // tensor.shape[-1])
    rows = chain.embedding(n_rows) if tensor.name.startswith("token") else chain.head(n_rows)
    yield from (partial(quantize, piece, kind) for piece in rows)


def _random_pieces(tensor: Tensor, kind: GGMLQuantizationType, twin: Twin) -> Iterator[Piece]:
    """Yield functions that make another tensor's bytes, some rows at a time. Each is called before the next
    is asked for."""
    rng = np.random.Generator(np.random.SFC64([twin.seed, zlib.crc32(tensor.name.encode())]))
    std = _deviation(tensor, twin)
    if tensor.kind in (*_PLAIN, "ids"):
        yield partial(_small, tensor, rng, std, twin.model.shape.n_expert)
        return
    total, n_rows = int(np.prod(tensor.shape[:-1])), max(1, PIECE // tensor.shape[-1])
    for start in range(0, total, n_rows):
        yield partial(random_numbers, rng, min(n_rows, total - start) * tensor.shape[-1], kind, std)


def _small(tensor: Tensor, rng: np.random.Generator, std: float, n_expert: int) -> npt.NDArray[np.generic]:
    if tensor.kind == "ids":
        return rng.random((tensor.shape[0], n_expert)).argsort(1)[:, : tensor.shape[1]].astype(np.int32)
    numbers = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(std)
    numbers += {"norm": 1, "decay": -1}.get(tensor.kind, 0)
    return numbers


def _deviation(tensor: Tensor, twin: Twin) -> float:
    """Return the standard deviation of a tensor's numbers, which keeps every part of the stream well scaled.

    All layers' outputs add up to `PERTURBATION`: attention and feed-forward share it evenly. Inputs of output
    projections are of about unit size behind attention, 0.6 behind a gate (the root mean square of SiLU of a
    normal number).
    """
    name = tensor.name
    if tensor.kind in ("norm", "decay"):
        return 0.0 if name == "output_norm.weight" else 0.05
    if tensor.kind == "bias":
        return 0.02
    std = (ROUTER if tensor.kind == "router" else 1.0) / float(np.sqrt(tensor.shape[-1]))
    if _OUTPUTS.search(name):
        gain = PERTURBATION / float(np.sqrt(2 * twin.model.shape.n_layer))
        std *= gain if "attn" in name else gain / 0.6 * (2.0 if "_exps" in name else 1.0)
    return std


def draft_of(twin: Twin, draft: Named, agreement: float, mix: str, name: str) -> Twin:
    """Return the twin of a draft model that writes the same chain, except for a share of the tokens."""
    shape = replace(draft.shape, n_vocab=twin.model.shape.n_vocab)
    model = replace(draft, shape=shape, pre=twin.model.pre)
    # It has embeddings of its own that do not drift: nothing routes by them.
    return Twin(name, model, mix, Drift(0.0, 0.0), twin.seed, agreement)
