"""Make a random LoRA adapter for a tiny model, on experts and on dense matrices."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

RANK = 4


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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
