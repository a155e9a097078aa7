"""Write metadata values of any type that a GGUF can hold."""

from __future__ import annotations

from collections.abc import Mapping

from gguf import GGUFWriter

Value = int | float | bool | str | list[int] | list[bool] | list[float]


def add_values(writer: GGUFWriter, architecture: str, values: Mapping[str, Value]) -> None:
    """Add an architecture's metadata, whose keys lack its name, and the tokenizer's, which have theirs."""
    for key, value in values.items():
        add_value(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)


def add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    """Add one value under its whole key."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
