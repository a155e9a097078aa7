"""Make weights in ggml's block formats: computed ones are quantized, random ones are made as blocks.

Random weights are independent and uniform over a block's quants, with the same scale in every block. Their
standard deviation is exact, their mean is zero, and making them is as fast as random bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_Q4_SCALE = 8  # value of the 6-bit scales and minima in random Q4_K and Q5_K blocks
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def quantize(numbers: Floats, kind: GGMLQuantizationType) -> Bytes:
    """Return uint8 [rows, bytes] of float32 [rows, columns]. Columns have to be whole blocks."""
    if kind == GGMLQuantizationType.Q4_K:
        return _q4_k(numbers.reshape(-1, 256)).reshape(len(numbers), -1)
    if kind == GGMLQuantizationType.Q6_K:
        return _q6_k(numbers.reshape(-1, 256)).reshape(len(numbers), -1)
    return np.ascontiguousarray(quants.quantize(numbers, kind)).view(np.uint8).reshape(len(numbers), -1)


def _q4_k(x: Floats) -> Bytes:
    """Return blocks of 256 numbers: eight groups of 32, each d·scale·q − dmin·min with q in 0 to 15."""
    groups = x.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), 0)
    scale = (groups.max(axis=2) - low) / 15
    d = (scale.max(axis=1) / 63).astype(np.float16)
    dmin = (-low.min(axis=1) / 63).astype(np.float16)
    scales = _divide(scale, d).clip(0, 63)
    minima = _divide(-low, dmin).clip(0, 63)
    step = scales * d.astype(np.float32)[:, None]
    offset = minima * dmin.astype(np.float32)[:, None]
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    q = np.rint((groups + offset[..., None]) * inverse[..., None]).clip(0, 15).astype(np.uint8)
    blocks = np.empty((len(x), 144), np.uint8)
    blocks[:, 0:2] = d[:, None].view(np.uint8)
    blocks[:, 2:4] = dmin[:, None].view(np.uint8)
    blocks[:, 4:16] = _six_bits(scales.astype(np.uint8), minima.astype(np.uint8))
    halves = q.reshape(-1, 4, 2, 32)
    blocks[:, 16:] = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(-1, 128)
    return blocks


def _divide(values: Floats, by: npt.NDArray[np.float16]) -> Floats:
    """Return values / by, rounded, by row; 0 where `by` is 0."""
    wide = np.broadcast_to(by.astype(np.float32)[:, None], values.shape)
    return np.rint(np.divide(values, wide, out=np.zeros_like(values), where=wide > 0))


def _six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Return [blocks, 12] of eight 6-bit scales and minima. The last four's upper bits lie on the first
    four."""
    packed = np.empty((len(scales), 12), np.uint8)
    packed[:, 0:4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    packed[:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    packed[:, 8:12] = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return packed


def _q6_k(x: Floats) -> Bytes:
    """Return blocks of 256 numbers: sixteen groups of 16, each d·scale·(q − 32) with q in 0 to 63."""
    groups = x.reshape(-1, 16, 16)
    scale = np.abs(groups).max(axis=2) / 31
    d = (scale.max(axis=1) / 127).astype(np.float16)
    scales = _divide(scale, d).clip(0, 127)
    step = scales * d.astype(np.float32)[:, None]
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    q = (np.rint(groups * inverse[..., None]).clip(-32, 31) + 32).astype(np.uint8)
    quarters = q.reshape(-1, 2, 4, 32)  # [block, half, quarter, 32]
    lower, upper = quarters & 15, quarters >> 4
    blocks = np.empty((len(x), 210), np.uint8)
    blocks[:, :128] = (lower[:, :, :2] | lower[:, :, 2:] << 4).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    blocks[:, 128:192] = np.bitwise_or.reduce(upper << shifts, axis=2).reshape(-1, 64)
    blocks[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    blocks[:, 208:210] = d[:, None].view(np.uint8)
    return blocks


def random_blocks(rng: np.random.Generator, n_number: int, kind: GGMLQuantizationType, std: float) -> Bytes:
    """Return uint8 [bytes] of that many random numbers. Raise ValueError for types without a maker."""
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16):
        numbers = rng.standard_normal(n_number, dtype=np.float32) * np.float32(std)
        return np.ascontiguousarray(quants.quantize(numbers, kind)).view(np.uint8).reshape(-1)
    if kind not in _HEADERS:
        raise ValueError(
            f"no random weights of type {kind.name}; known: {', '.join(k.name for k in _HEADERS)}"
        )
    block, size = GGML_QUANT_SIZES[kind]
    n_byte = n_number // block * size
    words = rng.integers(0, 2**64, -(-n_byte // 8), dtype=np.uint64)
    blocks: Bytes = words.view(np.uint8)[:n_byte]
    _HEADERS[kind](blocks.reshape(-1, size), std)
    return blocks


def _half(value: float) -> Bytes:
    return np.array([value], np.float16).view(np.uint8)


def _spread(levels: int) -> float:
    """Return the standard deviation of a uniform choice of that many neighbouring integers."""
    return float(np.sqrt((levels**2 - 1) / 12))


def _header_k(blocks: Bytes, std: float, levels: int) -> None:
    """Write the header of Q4_K and Q5_K: a scale and a minimum for all numbers of the block, so that they lie
    around zero."""
    d = std / (_spread(levels) * _Q4_SCALE)
    blocks[:, 0:2], blocks[:, 2:4] = _half(d), _half(d * (levels - 1) / 2)
    eight = np.full((1, 8), _Q4_SCALE, np.uint8)
    blocks[:, 4:16] = _six_bits(eight, eight)


def _header_q6_k(blocks: Bytes, std: float) -> None:
    blocks[:, 192:208] = 1
    blocks[:, 208:210] = _half(std / _spread(64))


def _header_plain(blocks: Bytes, std: float, levels: int) -> None:
    blocks[:, 0:2] = _half(std / _spread(levels))


def _header_q5_1(blocks: Bytes, std: float) -> None:
    d = std / _spread(32)
    blocks[:, 0:2], blocks[:, 2:4] = _half(d), _half(-15.5 * d)


def _header_mxfp4(blocks: Bytes, std: float) -> None:
    """Write the header of MXFP4. Its scale is a power of two, so the deviation is right to within a factor of
    √2."""
    exponent = round(np.log2(std / np.sqrt(np.mean(_FP4**2))))
    blocks[:, 0] = np.clip(exponent + 127, 1, 254)


_HEADERS: dict[GGMLQuantizationType, Callable[[Bytes, float], None]] = {
    GGMLQuantizationType.Q4_K: partial(_header_k, levels=16),
    GGMLQuantizationType.Q5_K: partial(_header_k, levels=32),
    GGMLQuantizationType.Q6_K: _header_q6_k,
    GGMLQuantizationType.Q8_0: partial(_header_plain, levels=256),
    GGMLQuantizationType.Q5_0: partial(_header_plain, levels=32),
    GGMLQuantizationType.Q5_1: _header_q5_1,
    GGMLQuantizationType.MXFP4: _header_mxfp4,
}
