"""Write a tiny random projector of images, in the forms of Qwen3-VL and of Gemma 3, and make pictures.

Qwen3-VL's takes images of any size, has M-RoPE positions, and gives embeddings for the first layers too.
Gemma 3's takes squares, and its images are evaluated without a causal mask.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tools.models.parts import Tensor, bias, matrix, norm
from tools.models.shape import Shape
from tools.models.values import Value, add_values, finish
from tools.models.writer import add_tensor

WIDTH, HEADS, HIDDEN, LAYERS = 32, 2, 48, 2
PATCH, SIDE = 8, 64  # pixels
TYPES = {"qwen3vl": "qwen3vl_merger", "gemma3": "gemma3"}
MERGED = {"qwen3vl": 2, "gemma3": 4}  # a token stands for the square of so many patches


def write_projector(
    path: str | os.PathLike[str], kind: str, n_embd: int, *, n_deepstack: int = 0, seed: int = 0
) -> Path:
    """Write a projector to embeddings of `n_embd` numbers and return its path.

    `kind` is a key of `TYPES`. The first `n_deepstack` layers give embeddings to the model's layers as well
    (Qwen3-VL). The same arguments give the same bytes.
    """
    path = Path(path)
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"tiny random {kind} projector")
    add_values(writer, "clip", _metadata(kind, n_embd))
    for tensor in _tensors(kind, n_embd, n_deepstack):
        add_tensor(writer, Shape(seed=seed), tensor)
    finish(writer)
    return path


def _metadata(kind: str, n_embd: int) -> Mapping[str, Value]:
    return {
        "has_vision_encoder": True, "projector_type": TYPES[kind], "use_gelu": True,
        "vision.embedding_length": WIDTH, "vision.attention.head_count": HEADS,
        "vision.feed_forward_length": HIDDEN, "vision.block_count": LAYERS, "vision.projection_dim": n_embd,
        "vision.attention.layer_norm_epsilon": 1e-6, "vision.image_size": SIDE, "vision.patch_size": PATCH,
        "vision.image_mean": [0.5, 0.5, 0.5], "vision.image_std": [0.5, 0.5, 0.5],
        "vision.spatial_merge_size": MERGED[kind], "vision.projector.scale_factor": MERGED[kind],
    }  # fmt: skip


def _tensors(kind: str, n_embd: int, n_deepstack: int) -> list[Tensor]:
    wide, is_qwen = WIDTH * MERGED["qwen3vl"] ** 2, kind == "qwen3vl"
    names = ("v.patch_embd.weight", "v.patch_embd.weight.1")[: 1 + is_qwen]
    tensors = [
        *(Tensor(name, (WIDTH, 3, PATCH, PATCH), gain=(3 * PATCH) ** -0.5) for name in names),
        bias("v.patch_embd", WIDTH),
        Tensor("v.position_embd.weight", ((SIDE // PATCH) ** 2, WIDTH), "embedding"),
        *_norm("v.post_ln", WIDTH),
    ]
    for il in range(LAYERS):
        p = f"v.blk.{il}."
        rows = {"attn_qkv": 3 * WIDTH} if is_qwen else dict.fromkeys(("attn_q", "attn_k", "attn_v"), WIDTH)
        tensors += [*_norm(p + "ln1", WIDTH), *_norm(p + "ln2", WIDTH)]
        for name, n in {**rows, "attn_out": WIDTH, "ffn_up": HIDDEN, "ffn_down": WIDTH}.items():
            tensors += _linear(p + name, n, HIDDEN if name == "ffn_down" else WIDTH)
    if not is_qwen:
        return [*tensors, matrix("mm.input_projection", WIDTH, n_embd), norm("mm.soft_emb_norm", WIDTH)]
    for il in range(n_deepstack):
        p = f"v.deepstack.{il}."
        tensors += [
            *_norm(p + "norm", wide),
            *_linear(p + "fc1", wide, wide),
            *_linear(p + "fc2", n_embd, wide),
        ]
    return [*tensors, *_linear("mm.0", wide, wide), *_linear("mm.2", n_embd, wide)]


def _norm(name: str, size: int) -> list[Tensor]:
    return [norm(name, size), bias(name, size)]


def _linear(name: str, rows: int, inputs: int) -> list[Tensor]:
    return [matrix(name, rows, inputs), bias(name, rows)]


def png(width: int, height: int, seed: int = 0) -> bytes:
    """Return a PNG file of random pixels; the same arguments give the same bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: the row is not filtered
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
