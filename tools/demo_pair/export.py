"""Convert a checkpoint to GGUF: matrices as Q8_0, norms and routers as F32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer
from torch import Tensor

from tools.models.tokenizer import write_bpe
from tools.models.values import add_values, finish

from .data import (
    BEGIN_TURN,
    CONTEXT_LENGTH,
    END_OF_TEXT_ID,
    END_TURN,
    END_TURN_ID,
    PRE_TOKENIZER,
    SPECIALS,
    load_tokenizer,
    vocabulary,
)
from .model import HEAD_DIM, HEADS, KV_HEADS, NORM_EPS, QKV_SIZES, ROPE_BASE, WIDTH, Form, LanguageModel
from .stories import LICENCE

_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{BEGIN_TURN}' + message['role'] + '\\n' + message['content'] + '{END_TURN}\\n' }}}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{BEGIN_TURN}assistant\\n' }}}}{{% endif %}}"
)


def _stays_exact(name: str, value: Tensor) -> bool:
    return value.ndim == 1 or "ffn_gate_inp" in name


def rounded(model: LanguageModel, kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0) -> LanguageModel:
    """Return a copy whose matrices were converted to ``kind`` and back: llama.cpp computes with these
    values."""
    weights = dict(model.weights)
    for name, value in weights.items():
        if not _stays_exact(name, value):
            packed = gguf.quants.quantize(value.numpy(), kind)
            weights[name] = torch.from_numpy(gguf.quants.dequantize(packed, kind))
    return LanguageModel(model.form, weights)


def _tensors(model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors as llama.cpp has them."""
    for name, value in model.weights.items():
        if name.endswith("attn_qkv"):
            for part, rows in zip("qkv", value.split(QKV_SIZES), strict=True):
                yield name.replace("qkv", part), rows
        else:
            yield name, value


def _metadata(form: Form) -> dict[str, int | float]:
    experts = {
        "expert_count": form.experts, "expert_used_count": form.experts_used,
        "expert_feed_forward_length": form.ffn,
    }  # fmt: skip
    return {
        "block_count": form.layers, "context_length": CONTEXT_LENGTH, "embedding_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, "rope.freq_base": ROPE_BASE,
        "attention.layer_norm_rms_epsilon": NORM_EPS,
        "feed_forward_length": form.ffn * max(1, form.experts_used), **(experts if form.experts else {}),
    }  # fmt: skip


def write(model: LanguageModel, encoder: Tokenizer, name: str, path: Path) -> None:
    """Write ``model`` to ``path``. An old file there is replaced at the end, in one step."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, model.form.architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_description("Tells short stories that SmolLM2 has taught; a demo, not an assistant.")
    writer.add_license(LICENCE)
    writer.add_dataset_count(1)
    writer.add_dataset_name(0, "Short stories")
    writer.add_dataset_description(0, f"{LICENCE}, written by SmolLM2-135M-Instruct")
    writer.add_chat_template(_TEMPLATE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_values(writer, model.form.architecture, _metadata(model.form))
    tokens, merges = vocabulary(encoder)
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    kinds[: len(SPECIALS)] = [gguf.TokenType.CONTROL] * len(SPECIALS)
    end = END_OF_TEXT_ID
    write_bpe(
        writer, PRE_TOKENIZER, tokens, kinds, merges, end=end, end_of_turn=END_TURN_ID, pad=end, begins=True
    )
    writer.add_add_eos_token(False)
    for key, value in _tensors(model):
        if _stays_exact(key, value):
            writer.add_tensor(f"{key}.weight", value.numpy())
        else:
            kind = GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(np.ascontiguousarray(value.numpy()), kind)
            writer.add_tensor(f"{key}.weight", packed, raw_dtype=kind)
    finish(writer)
    partial.replace(path)


def export_pair(work: Path, models: Path) -> None:
    """Write ``target.gguf`` and ``draft.gguf`` from the checkpoints in ``work``."""
    for name in ("target", "draft"):
        model, _ = LanguageModel.load(work / f"{name}.pt")
        write(model, load_tokenizer(work), f"spac demo {name}", models / f"{name}.gguf")
