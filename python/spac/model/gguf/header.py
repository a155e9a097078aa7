"""Reads a GGUF file's header: the metadata and the list of tensors, without the tensors' data.

`gguf.GGUFReader` is not used for two reasons. It makes a numpy array of every token and every merge: for a
vocabulary of 152,000 on two cores, it takes 12 s and 560 MB, and this module takes 0.2 s. It also trusts the
lengths in the file. The tables of types and block sizes come from the gguf package.

Every fault of a file raises `HeaderError` with the fault and the remedy. The file's size bounds work and
memory. The limits below bound them where a short file could claim much.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from spac.machine.files import plain

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
"""The largest number of metadata entries, and of tensors. Real files have some hundreds."""
MAX_STRINGS = 1 << 24
"""The largest number of strings of one array. The largest vocabularies have some hundred thousand."""
MAX_KEY = 1 << 16
"""Bytes of the longest key."""
MAX_VALUE = 1 << 27
"""Bytes of the longest string. Chat templates have some thousand."""
KEEP = 4096
"""The largest number of elements of an array whose values are kept. Longer arrays are only counted."""
MAX_DIMS = 4
MAX_TENSOR_NAME = 63

TOKENS = "tokenizer.ggml.tokens"
ALIGNMENT = "general.alignment"
BAD_ALIGNMENT = f"{ALIGNMENT} is not a power of two of type uint32"
DAMAGED = "the file is damaged or not complete: download or convert it again"

Scalar = int | float | bool | str
_FORMATS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_SCALARS = {kind: struct.Struct(text) for kind, text in _FORMATS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class HeaderError(Exception):
    """A fault of a file, with the remedy that a user can try."""

    def __init__(self, fault: str, remedy: str = DAMAGED) -> None:
        super().__init__(f"{fault}; {remedy}")
        self.fault, self.remedy = fault, remedy


@dataclass(frozen=True)
class Array:
    """A metadata array. `values` is None if it has strings or more than KEEP elements."""

    kind: GGUFValueType
    n: int
    values: tuple[Scalar, ...] | None


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's description in the header.

    `shape` is in ggml's order: the length of a row comes first. `offset` is in bytes from `data_offset`.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """A file's metadata and its tensors, both in file order."""

    metadata: dict[str, Scalar | Array]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_size: int

    @property
    def data_end(self) -> int:
        """The least size in bytes of a complete file."""
        if not self.tensors:
            return 0
        return self.data_offset + max(t.offset + t.n_bytes for t in self.tensors)


def read_header(path: Path) -> Header:
    """Return the header of a regular file. Raises HeaderError, or OSError if the file cannot be read."""
    with plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise HeaderError("the file is empty", "download or convert it again")
        _check_magic(file.read(64))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(data).header()


def _check_magic(head: bytes) -> None:
    if head[:4] == MAGIC:
        return
    if head[:4] == MAGIC[::-1]:
        raise HeaderError("this is a big-endian GGUF file", "use a little-endian one")
    if head.startswith(b"version https://git-lfs"):
        raise HeaderError("this is a Git LFS pointer, not the model", "run git lfs pull in its folder")
    if head.lstrip()[:1] == b"<":
        raise HeaderError("this is a web page, not a model", "download the file itself")
    kind = "not a GGUF file"
    if head[:2] == b"PK":
        kind = "a zip archive or a PyTorch checkpoint, not a GGUF file"
    elif head[8:10] == b'{"':
        kind = "a safetensors file, not a GGUF file"
    elif head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        kind = "a GGML file from before GGUF"
    raise HeaderError(f"this is {kind}", "convert the model with llama.cpp's convert_hf_to_gguf.py")


class _Parser:
    """A cursor over the mapped file. It checks every read against the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.at = len(MAGIC)

    def header(self) -> Header:
        version = self.u32("the version")
        if version & 0xFFFF == 0:
            raise HeaderError("this is a big-endian GGUF file", "use a little-endian one")
        if version not in VERSIONS:
            remedy = (
                "convert it again"
                if version < min(VERSIONS)
                else "this llama.cpp is too old for it, or it is damaged"
            )
            raise HeaderError(f"GGUF version {version} is not one of {', '.join(map(str, VERSIONS))}", remedy)
        n_tensors, n_entries = self.u64("the number of tensors"), self.u64("the number of metadata entries")
        for n, what in ((n_entries, "metadata entries"), (n_tensors, "tensors")):
            if n > MAX_ENTRIES:
                raise HeaderError(f"it claims {n} {what}, more than {MAX_ENTRIES}")
        metadata = self.metadata(n_entries)
        tensors = self.tensors(n_tensors)
        alignment = self.alignment(metadata)
        data_offset = -(-self.at // alignment) * alignment
        return Header(metadata, tensors, alignment, data_offset, self.size)

    def metadata(self, n: int) -> dict[str, Scalar | Array]:
        metadata: dict[str, Scalar | Array] = {}
        for i in range(n):
            key = self.string(f"metadata key {i}", MAX_KEY)
            if not key or key in metadata:
                raise HeaderError(f"metadata key {i} is {'empty' if not key else f'a second {key!r}'}")
            kind = self.kind(key)
            if key == ALIGNMENT and kind != GGUFValueType.UINT32:
                raise HeaderError(BAD_ALIGNMENT)
            metadata[key] = self.array(key) if kind == GGUFValueType.ARRAY else self.value(kind, key)
        return metadata

    def tensors(self, n: int) -> tuple[TensorInfo, ...]:
        tensors: dict[str, TensorInfo] = {}
        for i in range(n):
            tensor = self.tensor(i)
            if tensor.name in tensors:
                raise HeaderError(f"there are two tensors {tensor.name!r}")
            tensors[tensor.name] = tensor
        return tuple(tensors.values())

    def tensor(self, i: int) -> TensorInfo:
        name = self.string(f"the name of tensor {i}", MAX_KEY)
        if len(name.encode()) > MAX_TENSOR_NAME:
            raise HeaderError(f"the name of tensor {i} has more than {MAX_TENSOR_NAME} bytes")
        n_dims = self.u32(f"tensor {name!r}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise HeaderError(f"tensor {name!r} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
        shape = tuple(self.u64(f"tensor {name!r}") for _ in range(n_dims))
        if min(shape) == 0:
            raise HeaderError(f"tensor {name!r} has a dimension of 0 ({_times(shape)})")
        number = self.u32(f"tensor {name!r}")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            remedy = "if the file is new, update the gguf package; else convert it again"
            raise HeaderError(f"tensor {name!r} has the unknown or removed type {number}", remedy) from None
        block, size = GGML_QUANT_SIZES[kind]
        if shape[0] % block:
            raise HeaderError(
                f"tensor {name!r} has rows of {shape[0]}, not a multiple of {kind.name}'s {block}"
            )
        n_bytes = shape[0] // block * size
        for n in shape[1:]:
            n_bytes *= n
        if n_bytes >= 1 << 62:
            raise HeaderError(f"tensor {name!r} is impossibly large ({_times(shape)})")
        return TensorInfo(name, shape, kind, self.u64(f"tensor {name!r}"), n_bytes)

    def alignment(self, metadata: dict[str, Scalar | Array]) -> int:
        value = metadata.get(ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise HeaderError(BAD_ALIGNMENT)
        return value

    # Values

    def array(self, key: str) -> Array:
        kind = self.kind(key)
        n = self.u64(key)
        if kind == GGUFValueType.ARRAY:
            raise HeaderError(f"metadata {key!r} is an array of arrays")
        if kind == GGUFValueType.STRING:
            if n > MAX_STRINGS:
                raise HeaderError(f"metadata {key!r} claims {n} strings, more than {MAX_STRINGS}")
            if key == TOKENS:
                self.tokens(n, key)
            else:
                self.skip_strings(n, key)
            return Array(kind, n, None)
        size = _SCALARS[kind].size
        if n > (self.size - self.at) // size:
            raise HeaderError(f"metadata {key!r} claims {n} values, past the end of the file")
        if n > KEEP:
            self.at += n * size
            return Array(kind, n, None)
        return Array(kind, n, tuple(self.value(kind, key) for _ in range(n)))

    def skip_strings(self, n: int, key: str) -> None:
        data, at, last, unpack = self.data, self.at, self.size - 8, _U64.unpack_from
        for _ in range(n):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= self.size:
                self.at = at
                return
        raise HeaderError(f"metadata {key!r} runs past the end of the file")

    def tokens(self, n: int, key: str) -> None:
        """Skip the vocabulary. Raise HeaderError if two tokens are equal: llama.cpp asserts that they differ.

        Tokens are compared as C strings. Empty ones may repeat.
        """
        begin = self.at
        self.skip_strings(n, key)
        data, at, unpack = self.data, begin, _U64.unpack_from
        seen: set[bytes] = set()
        n_empty = 0
        for _ in range(n):
            size = unpack(data, at)[0]
            token = data[at + 8 : at + 8 + size].partition(b"\0")[0]
            at += 8 + size
            n_empty += not token
            seen.add(token)
        if len(seen) + max(n_empty - 1, 0) != n:
            raise HeaderError("two tokens of its vocabulary are the same")

    def value(self, kind: GGUFValueType, what: str) -> Scalar:
        if kind == GGUFValueType.STRING:
            return self.string(what, MAX_VALUE)
        form = _SCALARS[kind]
        value: Scalar = form.unpack_from(self.data, self.take(form.size, what))[0]
        return value

    def kind(self, key: str) -> GGUFValueType:
        number = self.u32(key)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise HeaderError(f"metadata {key!r} has the unknown type {number}") from None

    def string(self, what: str, limit: int) -> str:
        n = self.u64(what)
        if n > limit:
            raise HeaderError(f"{what} claims {n} bytes, more than {limit}")
        at = self.take(n, what)
        return self.data[at : at + n].decode("utf-8", errors="replace")

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def take(self, n: int, what: str) -> int:
        """Return the place of the next n bytes, and move the cursor behind them."""
        at = self.at
        if n > self.size - at:
            raise HeaderError(f"the file ends within {what}")
        self.at = at + n
        return at


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
