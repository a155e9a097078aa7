"""A tiny random Mamba: a model whose memory is a state, from which no token can be taken back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.models.tokenizer import write_tokenizer

N_LAYER, N_EMBD, N_INNER, N_STATE, N_CONV, N_DT = 2, 32, 64, 8, 4, 4


def write_mamba(path: Path) -> Path:
    """Writes the model and returns its path."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "mamba")
    n_vocab = write_tokenizer(writer)
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYER)
    writer.add_ssm_conv_kernel(N_CONV)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_DT)
    writer.add_layer_norm_rms_eps(1e-5)

    def add(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, rng.normal(0, scale, shape).astype(np.float32))

    add("token_embd.weight", n_vocab, N_EMBD, scale=1.0)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for i in range(N_LAYER):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(N_EMBD, np.float32))
        add(f"blk.{i}.ssm_in.weight", 2 * N_INNER, N_EMBD)
        add(f"blk.{i}.ssm_conv1d.weight", N_INNER, N_CONV)
        add(f"blk.{i}.ssm_conv1d.bias", N_INNER)
        add(f"blk.{i}.ssm_x.weight", N_DT + 2 * N_STATE, N_INNER)
        add(f"blk.{i}.ssm_dt.weight", N_INNER, N_DT)
        add(f"blk.{i}.ssm_dt.bias", N_INNER)
        writer.add_tensor(f"blk.{i}.ssm_a", -np.exp(rng.normal(0, 0.3, (N_INNER, N_STATE))).astype(np.float32))
        add(f"blk.{i}.ssm_d", N_INNER)
        add(f"blk.{i}.ssm_out.weight", N_EMBD, N_INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
