"""Makers of damaged GGUF files.

The damage is in the fields of the header, in their lengths, types and numbers, in the tensors' table, in the
weights, and at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
from hypothesis import strategies as st

Edit = tuple[int, bytes]


@dataclass(frozen=True)
class Seed:
    """Good file, and the places of its header's fields: (offset, size) by what they belong to."""

    content: bytes
    numbers: tuple[tuple[int, int], ...]  # metadata's values and lengths, of 1 to 8 bytes
    texts: tuple[tuple[int, int], ...]  # keys, names and strings
    tensors: tuple[tuple[int, int], ...]  # dimensions, types and offsets of tensors
    header_end: int

    @staticmethod
    def read(path: Path) -> Seed:
        reader = gguf.GGUFReader(path)
        numbers: list[tuple[int, int]] = [(4, 4), (8, 8), (16, 8)]  # version, number of tensors, of entries
        texts: list[tuple[int, int]] = []
        tensors: list[tuple[int, int]] = []
        for key, field in reader.fields.items():
            if key.startswith("GGUF."):
                continue
            at = field.offset
            for part in field.parts[:40]:  # the first few of the vocabulary's lists
                (texts if part.dtype == "uint8" and part.nbytes > 1 else numbers).append((at, part.nbytes))
                at += part.nbytes
        for tensor in reader.tensors:
            at = tensor.field.offset
            for part in tensor.field.parts:
                size = part.nbytes
                if part.dtype == "uint8":
                    texts.append((at, size))
                else:  # the dimensions are one part
                    tensors += [(at + i, min(8, size)) for i in range(0, size, 8)]
                at += size
        return Seed(path.read_bytes(), tuple(numbers), tuple(texts), tuple(tensors), reader.data_offset)


def number(size: int) -> st.SearchStrategy[bytes]:
    """Draw the bytes of a wrong number: small, huge, negative, one bit off, or any."""
    small = st.integers(0, 70).map(lambda n: (n % 256**size).to_bytes(size, "little"))
    powers = st.integers(0, 8 * size - 1).map(lambda bit: (1 << bit).to_bytes(size, "little"))
    ends = st.sampled_from([b"\xff" * size, b"\x7f" * size])
    return st.one_of(small, powers, ends, st.binary(min_size=size, max_size=size))


@st.composite
def edits(draw: st.DrawFn, seed: Seed) -> list[Edit]:
    """Draw one to three changes that keep the length."""
    made: list[Edit] = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        kind = draw(st.sampled_from(["number", "number", "tensor", "tensor", "text", "byte", "weights"]))
        if kind == "number" or kind == "tensor":
            at, size = draw(st.sampled_from(seed.numbers if kind == "number" else seed.tensors))
            made.append((at, draw(number(size))))
        elif kind == "text":
            at, size = draw(st.sampled_from(seed.texts))
            made.append((at + draw(st.integers(0, size - 1)), draw(st.binary(min_size=1, max_size=3))))
        elif kind == "byte":
            made.append((draw(st.integers(0, seed.header_end - 1)), draw(st.binary(min_size=1, max_size=2))))
        else:
            at = draw(st.integers(seed.header_end, len(seed.content) - 1))
            made.append(
                (at, draw(st.sampled_from([b"\xff", b"\0", b"\x7f\x80"])) * draw(st.sampled_from([4, 4000])))
            )
    return made


def damaged(seed: Seed, changes: list[Edit], cut: int | None) -> bytes:
    """Return the file with the changes, ended at `cut`."""
    content = bytearray(seed.content)
    for at, data in changes:
        content[at : at + len(data)] = data[: max(0, len(content) - at)]
    return bytes(content[:cut])
