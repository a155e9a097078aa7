"""Run one MoE operator on one device, again and again with other ids.

Weights are random and the same in every process: a run with the unpatched library and a run with the patched
one get the same bits. Masks hide some of the ids, and `Count` counts rows that differ from what is required.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from spac.machine.arrays import BoolArray, Float32Array, Int32Array
from tools.models.weights import random_weights
from tools.patches.ggml import Ggml, Pointer

Ids = Int32Array

# Ids of columns behind the view that the operator gets. An operator that reads one of them is noticed.
POISON = 1 << 30
# Operators in the graph of "many", for timing: launching a graph costs more than one operator.
MANY = 16
# Their quantizers need seconds for setup, and random blocks serve as well.
SLOW = ("iq2_", "iq3_", "iq1_s")
# An ids mask hides an expert for all tokens or for none. Every token of a kept expert is kept, and the
# results must be the bits of a run without mask. "rows" masks single rows, with other negative numbers too.
# Then an expert has fewer rows and may get another kernel. It is compared with a run where the masked rows
# went to a spare expert.
BY_EXPERT = ("none", "one", "half", "all but one", "all")
MASKS = (*BY_EXPERT, "rows")


@dataclass(frozen=True)
class Shape:
    """The inputs of an operator. `broadcast`: one input row per token for all its experts (like gate and up),
    not one for each (like down). `strided`: ids are the first columns of a wider table (as argsort leaves
    them), not packed."""

    kind: str
    n_tokens: int
    op: str = "chain"
    broadcast: bool = False
    strided: bool = False
    n_used: int = 3
    n_expert: int = 8
    n_in: int = 256
    n_out: int = 64

    @property
    def name(self) -> str:
        layout = ("broadcast" if self.broadcast else "each") + ("-strided" if self.strided else "")
        return f"{self.kind}/{self.op}/{self.n_tokens}x{self.n_used}/{layout}/{self.n_in}x{self.n_out}"

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    def ids(self) -> Ids:
        """Return [n_tokens, n_used] ids that a router may choose. No token has an expert twice."""
        rng = self.rng
        return np.stack([rng.permutation(self.n_expert)[: self.n_used] for _ in range(self.n_tokens)]).astype(
            np.int32
        )


def outputs_of(ggml: Ggml, context: Pointer, op: str, t: dict[str, Pointer]) -> list[Pointer]:
    """Return the results of operator `op`, each [n_tokens, n_used, n_out]. CUDA fuses "glu" and the like."""
    c = ggml.c

    def up(name: str) -> Pointer:
        return c.ggml_mul_mat_id(context, t[name], t["x"], t["ids"])

    def biased(name: str) -> Pointer:
        return c.ggml_add_id(context, up(name), t[f"{name}_bias"], t["ids"])

    def chain() -> list[Pointer]:
        plain = up("up")
        return [plain, c.ggml_add_id(context, plain, t["up_bias"], t["ids"]), *ops["add_id"]()]

    ops: dict[str, Callable[[], list[Pointer]]] = {
        "mul_mat_id": lambda: [up("up")],
        "add_id": lambda: [c.ggml_add_id(context, t["rows"], t["up_bias"], t["ids"])],
        "bias": lambda: [biased("up")],
        "glu": lambda: [c.ggml_swiglu_split(context, up("gate"), up("up"))],
        "bias_glu": lambda: [c.ggml_swiglu_oai(context, biased("gate"), biased("up"), 1.702, 7.0)],
        "chain": chain,
        "many": lambda: [up("up") for _ in range(MANY)],
    }
    return ops[op]()


def can_multiply(ggml: Ggml, device: Pointer, shape: Shape, weights: Pointer) -> bool:
    """Return True if the device has mul_mat_id for these weights, in the buffer where they are."""
    context = ggml.context(3)
    x = ggml.c.ggml_new_tensor_3d(context, ggml.F32, shape.n_in, shape.n_used, shape.n_tokens)
    ids = ggml.c.ggml_new_tensor_2d(context, ggml.I32, shape.n_used, shape.n_tokens)
    product = ggml.c.ggml_mul_mat_id(context, weights, x, ids)
    supported = bool(ggml.c.ggml_backend_dev_supports_op(device, product))
    ggml.c.ggml_free(context)
    return supported


def quantized_rows(ggml: Ggml, kind: int, shape: Shape) -> npt.NDArray[np.uint8]:
    """Return a few rows to draw weights from."""
    rng = np.random.default_rng(kind)
    if shape.kind == "iq1_m":  # its float16 scale lies in the upper bits of the last four words: 2^-6
        words = rng.integers(0, 1 << 16, (16, shape.n_in // 256, 28), dtype=np.uint16)
        words[..., -4:] = words[..., -4:] & 0xFFF | np.array([0, 0, 4, 2], np.uint16) << 12
        return words.view(np.uint8).reshape(16, -1)
    if shape.kind.startswith(SLOW):
        blocks = random_weights(rng, (16, shape.n_in), GGMLQuantizationType[shape.kind.upper()], std=1.0)
        return blocks.view(np.uint8).reshape(16, -1)
    numbers = rng.standard_normal((16, shape.n_in), np.float32)
    return np.frombuffer(ggml.quantize(kind, numbers), np.uint8).reshape(16, -1)


@contextmanager
def weights_on(
    ggml: Ggml, backend: Pointer, device: Pointer, shape: Shape, buffer_type: Pointer | None = None
) -> Iterator[dict[str, Pointer] | None]:
    """Make random weights of n_expert + 1 experts (the last one spare), in memory of the backend's own or of
    `buffer_type`. Give None when the device cannot compute with them there."""
    names = ("up", "gate") if "glu" in shape.op else ("up",)
    kind = ggml.types[shape.kind]
    context = ggml.context(len(names))
    n = shape.n_expert + 1
    tensors = {name: ggml.c.ggml_new_tensor_3d(context, kind, shape.n_in, shape.n_out, n) for name in names}
    with ggml.memory(context, backend, buffer_type, weights=True):
        if not can_multiply(ggml, device, shape, tensors["up"]):
            yield None
            return
        rows = quantized_rows(ggml, kind, shape)
        for name, tensor in tensors.items():
            rng = np.random.default_rng(zlib.crc32(f"{shape.kind}/{name}".encode()))
            ggml.write(tensor, rows[rng.integers(0, len(rows), shape.n_out * n)])
        yield tensors


@dataclass
class Operator:
    """A prepared graph. `run(ids)` returns its results."""

    _ggml: Ggml
    _backend: Pointer
    _shape: Shape
    _graph: Pointer
    _ids: Pointer
    _out: list[Pointer]

    def run(self, ids: Ids) -> list[Float32Array]:
        """Return the operator's results for `ids` [n_tokens, n_used], each [n_tokens, n_used, n_out]."""
        s = self._shape
        self._write(ids)
        self._ggml.compute(self._backend, self._graph)
        return [self._ggml.read(tensor, (s.n_tokens, s.n_used, s.n_out)) for tensor in self._out]

    def time(self, ids: Ids) -> float:
        """Return the seconds of the whole graph, once."""
        self._write(ids)
        start = time.perf_counter()
        self._ggml.compute(self._backend, self._graph)
        return time.perf_counter() - start

    def _write(self, ids: Ids) -> None:
        s = self._shape
        table = np.full((s.n_tokens, s.n_used + 5), POISON, np.int32) if s.strided else ids.copy()
        table[:, : s.n_used] = ids
        self._ggml.write(self._ids, table)


@contextmanager
def operator(ggml: Ggml, backend: Pointer, shape: Shape, weights: dict[str, Pointer]) -> Iterator[Operator]:
    """Prepare the operator on the backend, with random input."""
    c, s = ggml.c, shape
    context = ggml.context(16 + MANY)
    wide = s.n_used + 5 if s.strided else s.n_used
    table = c.ggml_new_tensor_2d(context, ggml.I32, wide, s.n_tokens)
    ids = c.ggml_view_2d(context, table, s.n_used, s.n_tokens, 4 * wide, 0) if s.strided else table
    n_in_rows = 1 if s.broadcast else s.n_used
    shapes = {
        "x": (s.n_tokens, n_in_rows, s.n_in),
        "rows": (s.n_tokens, s.n_used, s.n_out),
        "up_bias": (s.n_expert + 1, s.n_out),
        "gate_bias": (s.n_expert + 1, s.n_out),
    }
    t = {
        name: (c.ggml_new_tensor_3d if len(sizes) == 3 else c.ggml_new_tensor_2d)(
            context, ggml.F32, *reversed(sizes)
        )
        for name, sizes in shapes.items()
    }
    out = outputs_of(ggml, context, s.op, {**weights, **t, "ids": ids})
    graph = ggml.graph(context, out)
    with ggml.memory(context, backend):
        rng = s.rng
        for name, sizes in shapes.items():
            ggml.write(t[name], rng.standard_normal(sizes, np.float32))
        yield Operator(ggml, backend, s, graph, table, out)


def masked(shape: Shape, mask: str) -> Ids:
    """Return the shape's ids with negative numbers where `mask` hides an expert."""
    ids, rng = shape.ids(), np.random.default_rng(shape.n_tokens)
    n = shape.n_expert
    if mask == "rows":
        negative = rng.choice(np.array([-1, -2, np.iinfo(np.int32).min], np.int32), ids.shape)
        return np.where(rng.random(ids.shape) < 0.5, negative, ids).astype(np.int32)
    hidden = rng.permutation(n)[: {"none": 0, "one": 1, "half": n // 2, "all but one": n - 1, "all": n}[mask]]
    return np.where(np.isin(ids, hidden), -1, ids).astype(np.int32)


def with_spare(shape: Shape, ids: Ids) -> Ids:
    """Return masked ids for an unpatched library: the spare expert replaces hidden ones."""
    return np.where(ids < 0, shape.n_expert, ids).astype(np.int32)


@dataclass
class Count:
    """Numbers of rows, over results and masks."""

    n_kept: int = 0
    n_skipped: int = 0
    n_unequal: int = 0  # kept, and different from the reference's bits
    n_nonzero: int = 0  # skipped, and not exactly zero

    def add(self, ids: Ids, results: list[Float32Array], expected: list[Float32Array]) -> None:
        kept = ids >= 0
        for result, wanted in zip(results, expected, strict=True):
            same: BoolArray = (result.view(np.uint32) == wanted.view(np.uint32)).all(axis=-1)
            zero: BoolArray = (result.view(np.uint32) == 0).all(axis=-1)
            self.n_kept += int(kept.sum())
            self.n_skipped += int((~kept).sum())
            self.n_unequal += int((kept & ~same).sum())
            self.n_nonzero += int((~kept & ~zero).sum())
