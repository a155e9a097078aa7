"""Make a dense model beside a Mixture-of-Experts one, as Mistral stands beside Mixtral."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFWriter


def dense_sibling(source: Path, path: Path, expert: int = 0) -> Path:
    """Write at `path` the dense model that equals `source` when all tokens use `expert` alone. It has the
    same attention, norms and embedding, and an FFN in place of the experts. The experts of `source` must not
    be quantized, and none may be shared."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and "expert" not in name and name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        if "_exps." in tensor.name:
            writer.add_tensor(tensor.name.replace("_exps", ""), tensor.data[expert].copy())
        elif "ffn_gate_inp" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
