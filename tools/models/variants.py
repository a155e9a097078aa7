"""Make files of a model: a LoRA adapter, a dense sibling, and a copy with an error that comparisons see."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from tools.models.values import finish

RANK = 4
"""The rank of adapters."""


def write_adapter(
    path: str | os.PathLike[str], model: Path, pattern: str = r"_exps\.weight|attn_q\.weight"
) -> Path:
    """Write an adapter of rank 4 for the model's matrices whose names match `pattern`, strong enough to
    change every logit. Return its path."""
    reader = GGUFReader(model)
    writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for tensor in reader.tensors:
        if not re.search(pattern, tensor.name):
            continue
        n_in, n_out, *n_expert = map(int, tensor.shape)
        rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
        for end, shape in (("lora_a", (*n_expert, RANK, n_in)), ("lora_b", (*n_expert, n_out, RANK))):
            numbers = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
            writer.add_tensor(f"{tensor.name}.{end}", numbers)
    finish(writer)
    return Path(path)


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
    finish(writer)
    return path


def exchange_experts(model: Path, out: Path) -> Path:
    """Copy a model to `out`, with the first two experts of every MoE layer exchanged. Return `out`.

    Routers stay as they are, so tokens of one of the two experts get the other one.
    """
    shutil.copyfile(model, out)
    for tensor in GGUFReader(out, "r+").tensors:
        if "_exps." in tensor.name:
            tensor.data[:2] = tensor.data[[1, 0]]
    return out
