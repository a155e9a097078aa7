"""Make random weights in any ggml type.

Types that the gguf package can quantize are quantized from normal numbers. For the others (K-quants, IQ
types) random bytes are valid quants. Only the block's float scales are chosen, so that the dequantized
numbers have the wanted standard deviation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# The place of a block's float16 scale `d`, and of its float16 minimum `dmin` where it has one.
_SCALES: dict[str, tuple[int, int | None]] = {
    "Q2_K": (80, 82), "Q3_K": (108, None), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, None),
    "IQ4_NL": (0, None), "IQ4_XS": (0, None),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0, None)),
}  # fmt: skip
_FURTHER: dict[str, tuple[int, int | None]] = {"Q5_0": (0, None), "Q5_1": (0, 2), "Q8_0": (0, None)}
# dmin / d that centres the numbers: the mean of the unsigned quants (and of scales and minima, which cancel).
# Q5_1 adds its minimum, where the others subtract theirs.
_MIN_RATIO = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5, "Q5_1": -15.5}
_FP4_SPREAD = float(np.sqrt(np.mean(np.square([0, 0.5, 1, 1.5, 2, 3, 4, 6]))))


def random_weights(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    kind: GGMLQuantizationType,
    std: float,
    mean: float = 0.0,
) -> npt.NDArray[np.generic]:
    """Return normal (or, for scale-only types, centred) random numbers of the given shape, rows last, in ggml
    type `kind`.

    The result is the array that `GGUFWriter.add_tensor` takes: float32/float16 for these types, else uint8 of
    the byte shape. Raise ValueError when a row is not a whole number of blocks.
    """
    block, _ = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(f"rows of {shape[-1]} do not divide into blocks of {block} ({kind.name})")
    if kind.name in _SCALES:
        return random_blocks(rng, shape, kind, std)
    numbers = rng.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean)
    if kind == GGMLQuantizationType.F64:
        return numbers.astype(np.float64)
    if kind.name in ("I8", "I16", "I32", "I64"):
        return numbers.astype(kind.name.lower().replace("i", "int"))
    try:
        blocks: npt.NDArray[np.generic] = quants.quantize(numbers, kind)
    except NotImplementedError:  # types that no file should have
        return np.zeros(quants.quant_shape_to_byte_shape(shape, kind), np.uint8)
    return blocks


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType, std: float
) -> npt.NDArray[np.uint8]:
    """Return random blocks, as fast as random bytes. Types without such blocks raise KeyError."""
    block, size = GGML_QUANT_SIZES[kind]
    n_blocks = int(np.prod(shape)) // block
    blocks = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    if kind == GGMLQuantizationType.MXFP4:  # the scale is a power of two: right to within a factor of √2
        blocks[:, 0] = np.clip(round(np.log2(std / _FP4_SPREAD)) + 127, 1, 254)
        return blocks.reshape(*shape[:-1], -1)
    at, at_min = (_SCALES | _FURTHER)[kind.name]
    if kind.name == "Q6_K":  # its sub-block scales are signed and must not be near 0
        blocks[:, 192:208] = rng.integers(16, 64, (n_blocks, 16), dtype=np.uint8)
    factors = rng.uniform(0.7, 1.3, n_blocks).astype(np.float32)

    def set_scale(scale: float) -> None:
        blocks[:, at : at + 2] = (factors * scale).astype(np.float16)[:, None].view(np.uint8)
        if at_min is not None:
            low = (factors * scale * _MIN_RATIO[kind.name]).astype(np.float16)
            blocks[:, at_min : at_min + 2] = low[:, None].view(np.uint8)

    set_scale(1.0)
    sample = quants.dequantize(blocks[: min(n_blocks, 256)], kind)
    set_scale(std / float(np.sqrt(np.mean(np.square(sample)))))
    return blocks.reshape(*shape[:-1], shape[-1] // block * size)
