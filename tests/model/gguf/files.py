"""Bad files, each made from a good one. Users may give such files, and a library must never see them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import gguf
from gguf import GGUFReader, GGUFValueType, GGUFWriter


def patched(source: Path, target: Path, offset: int, data: bytes) -> Path:
    """Write a copy with the bytes at `offset` replaced. Return its path."""
    content = bytearray(source.read_bytes())
    content[offset : offset + len(data)] = data
    target.write_bytes(content)
    return target


def rewritten(
    source: Path, target: Path, metadata: dict[str, object] | None = None, *, drop: str = ""
) -> Path:
    """Write a copy and return its path. Metadata is replaced or added (None: removed), and tensors dropped by
    pattern. Keys may leave out the prefix of the architecture: ".expert_count"."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    changes = {architecture + k if k.startswith(".") else k: v for k, v in (metadata or {}).items()}
    writer = GGUFWriter(target, arch=str(changes.pop("general.architecture", architecture)))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in changes:
            continue
        sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub)
    for key, value in changes.items():
        _add(writer, key, value)
    for tensor in reader.tensors:
        if not drop or not re.search(drop, tensor.name):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _close(writer)
    return target


def _close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, int):
        writer.add_key_value(key, value, GGUFValueType.INT32 if value < 0 else GGUFValueType.UINT32)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_key_value(
            key, value, {float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}[type(value)]
        )


def split(source: Path, folder: Path, stem: str, n_parts: int = 3) -> list[Path]:
    """Write the model in parts, as llama-gguf-split does. Return their paths."""
    reader = GGUFReader(source)
    paths = [folder / f"{stem}-{i + 1:05}-of-{n_parts:05}.gguf" for i in range(n_parts)]
    for i, path in enumerate(paths):
        writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
        if i == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
                    writer.add_key_value(key, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", n_parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[i::n_parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        _close(writer)
    return paths


def raw(*entries: bytes, n_tensors: int = 0, n_entries: int | None = None, version: int = 3) -> bytes:
    """Return a file's content: a header with the given metadata entries, and all bytes that follow them."""
    count = len(entries) if n_entries is None else n_entries
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, count) + b"".join(entries)


def text(value: str) -> bytes:
    """Return the bytes of a GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, payload: bytes) -> bytes:
    """Return the bytes of a metadata entry."""
    return text(key) + struct.pack("<I", kind) + payload


def tensor_entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """Return the bytes of a tensor's entry in the header."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def offset_of(path: Path, name: str) -> int:
    """Return the offset of a tensor's entry in the header. The entry begins with the length of the tensor's
    name. Name, dimensions, type and offset follow."""
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == name:
            return int(tensor.field.offset)
    raise KeyError(name)
