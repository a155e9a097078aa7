"""Write metadata values of any type that a GGUF can hold."""

from __future__ import annotations

from collections.abc import Mapping

from gguf import GGUFValueType, GGUFWriter

Value = int | float | bool | str | list[int] | list[bool] | list[float]


def add_values(writer: GGUFWriter, architecture: str, values: Mapping[str, Value]) -> None:
    """Add an architecture's metadata, whose keys lack its name, and the tokenizer's, which have theirs."""
    for key, value in values.items():
        add_value(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)


def add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    """Add one value under its whole key."""
    kind = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
    writer.add_key_value(key, value, kind)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
