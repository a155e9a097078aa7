"""Tiny random models whose memory is a state. From Mamba's, no token can be taken back. LFM2 keeps the states
of the last few tokens if its context is set to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tools.models.tokenizer import write_tokenizer

N_LAYER, N_EMBD, N_FF = 2, 32, 48
N_INNER, N_STATE, N_CONV, N_DT = 64, 8, 4, 4  # sizes of Mamba
N_HEAD, N_HEAD_KV, L_CACHE = 4, 2, 3  # sizes of LFM2


class _Model:
    """A file in the making. It has the parts that both models share, and methods that add the rest."""

    def __init__(self, path: Path, architecture: str) -> None:
        self.path = path
        self.rng = np.random.default_rng(0)
        self.writer = GGUFWriter(path, architecture)
        n_vocab = write_tokenizer(self.writer)
        self.writer.add_context_length(512)
        self.writer.add_embedding_length(N_EMBD)
        self.writer.add_block_count(N_LAYER)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.matrix("token_embd.weight", n_vocab, N_EMBD, scale=1.0)

    def matrix(self, name: str, *shape: int, scale: float = 0.3) -> None:
        self.writer.add_tensor(name, self.rng.normal(0, scale, shape).astype(np.float32))

    def norm(self, name: str, size: int) -> None:
        self.writer.add_tensor(name, self.rng.uniform(0.8, 1.2, size).astype(np.float32))

    def write(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


def write_mamba(path: Path) -> Path:
    """Write the model and return its path."""
    model = _Model(path, "mamba")
    model.writer.add_feed_forward_length(0)
    model.writer.add_head_count(0)
    model.writer.add_ssm_conv_kernel(N_CONV)
    model.writer.add_ssm_inner_size(N_INNER)
    model.writer.add_ssm_state_size(N_STATE)
    model.writer.add_ssm_time_step_rank(N_DT)
    model.norm("output_norm.weight", N_EMBD)
    for i in range(N_LAYER):
        block = f"blk.{i}"
        model.norm(f"{block}.attn_norm.weight", N_EMBD)
        for name, shape in {
            "in.weight": (2 * N_INNER, N_EMBD), "conv1d.weight": (N_INNER, N_CONV), "conv1d.bias": (N_INNER,),
            "x.weight": (N_DT + 2 * N_STATE, N_INNER), "dt.weight": (N_INNER, N_DT), "dt.bias": (N_INNER,),
        }.items():  # fmt: skip
            model.matrix(f"{block}.ssm_{name}", *shape)
        decay = -np.exp(model.rng.normal(0, 0.3, (N_INNER, N_STATE)))
        model.writer.add_tensor(f"{block}.ssm_a", decay.astype(np.float32))
        model.matrix(f"{block}.ssm_d", N_INNER)
        model.matrix(f"{block}.ssm_out.weight", N_EMBD, N_INNER)
    return model.write()


def write_lfm2(path: Path) -> Path:
    """Write the model (a convolution layer, an attention layer) and return its path."""
    model = _Model(path, "lfm2")
    head_dim = N_EMBD // N_HEAD
    model.writer.add_feed_forward_length(N_FF)
    model.writer.add_head_count(N_HEAD)
    model.writer.add_head_count_kv([0, N_HEAD_KV])
    model.writer.add_shortconv_l_cache(L_CACHE)
    model.norm("token_embd_norm.weight", N_EMBD)
    for i in range(N_LAYER):
        block = f"blk.{i}"
        model.norm(f"{block}.attn_norm.weight", N_EMBD)
        model.norm(f"{block}.ffn_norm.weight", N_EMBD)
        for name, shape in {"gate": (N_FF, N_EMBD), "up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)}.items():
            model.matrix(f"{block}.ffn_{name}.weight", *shape)
    model.matrix("blk.0.shortconv.conv.weight", N_EMBD, L_CACHE)
    model.matrix("blk.0.shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD)
    model.matrix("blk.0.shortconv.out_proj.weight", N_EMBD, N_EMBD)
    model.norm("blk.1.attn_q_norm.weight", head_dim)
    model.norm("blk.1.attn_k_norm.weight", head_dim)
    for name, rows in {
        "q": N_EMBD,
        "k": N_HEAD_KV * head_dim,
        "v": N_HEAD_KV * head_dim,
        "output": N_EMBD,
    }.items():
        model.matrix(f"blk.1.attn_{name}.weight", rows, N_EMBD)
    return model.write()
