"""Convert a checkpoint to GGUF: matrices as Q8_0, norms and routers as F32."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from . import tokenizer
from .config import ModelConfig
from .data import LICENCE
from .model import Block, LanguageModel
from .train import load_model


def _array(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().float().numpy())


def _block_tensors(config: ModelConfig, block: Block) -> Iterator[tuple[str, Tensor]]:
    """Yield one block's tensors with llama.cpp's names."""
    sizes = [heads * config.head_dim for heads in (config.heads, config.kv_heads, config.kv_heads)]
    attention, ffn = block.attention, block.ffn
    q, k, v = attention.qkv.split(sizes)
    yield "attn_norm", block.attention_norm.weight
    yield "attn_q", q
    yield "attn_k", k
    yield "attn_v", v
    yield "attn_q_norm", attention.q_norm.weight
    yield "attn_k_norm", attention.k_norm.weight
    yield "attn_output", attention.out
    yield "ffn_norm", block.ffn_norm.weight
    suffix = "_exps" if config.experts else ""
    if config.experts:
        yield "ffn_gate_inp", ffn.router
    yield f"ffn_gate{suffix}", ffn.gate_up.narrow(-2, 0, config.ffn)
    yield f"ffn_up{suffix}", ffn.gate_up.narrow(-2, config.ffn, config.ffn)
    yield f"ffn_down{suffix}", ffn.down


def tensors(model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with llama.cpp's names."""
    yield "token_embd.weight", model.embedding
    yield "output.weight", model.output
    yield "output_norm.weight", model.norm.weight
    for index, block in enumerate(model.blocks):
        for name, value in _block_tensors(model.config, block):
            yield f"blk.{index}.{name}.weight", value


def _stays_exact(name: str, value: Tensor) -> bool:
    return value.ndim == 1 or "ffn_gate_inp" in name


def rounded(model: LanguageModel, kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0) -> LanguageModel:
    """Return a copy whose matrices were converted to ``kind`` and back: llama.cpp computes with these
    values."""
    result = copy.deepcopy(model).requires_grad_(False)
    for name, value in tensors(result):
        if not _stays_exact(name, value):
            packed = gguf.quants.quantize(_array(value), kind)
            value.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    return result


def _add_shape(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_feed_forward_length(config.ffn * max(1, config.experts_used))
    if config.experts:
        writer.add_expert_count(config.experts)
        writer.add_expert_used_count(config.experts_used)
        writer.add_expert_feed_forward_length(config.ffn)


def _add_tokenizer(writer: gguf.GGUFWriter, encoder: tokenizer.Tokenizer) -> None:
    tokens, merges = tokenizer.vocabulary(encoder)
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    kinds[tokenizer.END_OF_TEXT_ID] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokenizer.END_OF_TEXT_ID)
    writer.add_eos_token_id(tokenizer.END_OF_TEXT_ID)
    writer.add_eot_token_id(tokenizer.END_OF_TEXT_ID)
    writer.add_pad_token_id(tokenizer.END_OF_TEXT_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def write(model: LanguageModel, encoder: tokenizer.Tokenizer, name: str, path: Path) -> None:
    """Write ``model`` to ``path``. An old file there is replaced at the end, in one step."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, model.config.architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_description(
        "Trained on Python's standard library and documentation; a demo, not an assistant."
    )
    writer.add_dataset_count(1)
    writer.add_dataset_name(0, "Python standard library and documentation")
    writer.add_dataset_description(0, LICENCE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, model.config)
    _add_tokenizer(writer, encoder)
    for key, value in tensors(model):
        if _stays_exact(key, value):
            writer.add_tensor(key, _array(value))
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(key, gguf.quants.quantize(_array(value), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def export_pair(work: Path, models: Path) -> None:
    """Write ``target.gguf`` and ``draft.gguf`` from the checkpoints in ``work``."""
    encoder = tokenizer.load(work / "tokenizer.json")
    for name in ("target", "draft"):
        model, _ = load_model(work / f"{name}.pt")
        write(model, encoder, f"spac demo {name}", models / f"{name}.gguf")


def main() -> None:
    """Run the command line of the export."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--models", type=Path, default=Path("python/spac/demo"))
    args = parser.parse_args()
    export_pair(args.work, args.models)


if __name__ == "__main__":
    main()
