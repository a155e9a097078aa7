"""Bad files, each made from a good one. Users may give such files, and a library must never see them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
from gguf import GGUFReader, GGUFValueType, GGUFWriter

Edit = Callable[[dict[str, object]], None]


def patched(source: Path, target: Path, offset: int, data: bytes) -> Path:
    """Write a copy with the bytes at `offset` replaced. Return its path."""
    content = bytearray(source.read_bytes())
    content[offset : offset + len(data)] = data
    target.write_bytes(content)
    return target


def rewritten(
    source: Path,
    target: Path,
    metadata: dict[str, object] | None = None,
    *,
    drop: str = "",
    rename: dict[str, str] | None = None,
) -> Path:
    """Write a copy and return its path. Metadata is replaced or added (None: removed), tensors are dropped by
    pattern, and tensors are renamed. Keys may leave out the architecture's prefix: ".expert_count"."""
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
            name = (rename or {}).get(tensor.name, tensor.name)
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_key_value(key, value, GGUFValueType.INT32 if value < 0 else GGUFValueType.UINT32)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {value!r}")


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
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
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
