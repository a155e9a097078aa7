"""Define families whose tensors llama.cpp's loader describes (loader.py). Only their metadata is defined
here.

Every file has the keys that most architectures read, and the family's own keys.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGUFWriter

from tools.models.families import Metadata, base
from tools.models.loader import Shapes, shapes_of
from tools.models.parts import Tensor, prediction
from tools.models.shape import Shape
from tools.models.tokenizer import write_tokenizer
from tools.models.values import add_values, finish


@dataclass(frozen=True)
class LoaderFamily:
    """An architecture like `Family`. `left_out` are ends of the names of optional tensors that such files do
    not have (scales of matrices)."""

    architecture: str
    more: Callable[[Shape], Metadata] = lambda s: {}
    rewinds: bool = True
    embeds: bool = False
    default: Shape = field(default_factory=Shape)
    left_out: tuple[str, ...] = (".scale", ".input_scale", "rope_freqs.weight")
    options: tuple[str, ...] = ()

    def metadata(self, s: Shape) -> Metadata:
        """Return all keys, without the architecture's prefix."""
        return {**_usual(s), **self.more(s)}

    def tensors(self, shape: Shape, n_vocab: int) -> list[Tensor]:
        """Return all tensors in the loader's order."""
        shapes = _ask(self.question(shape))
        tensors = [_tensor(name, of) for name, of in shapes.items() if not name.endswith(self.left_out)]
        if not any(".nextn." in name for name in shapes):  # deepseek4's loader looks for them in the file
            tensors += prediction(shape, shape.n_layer - 1)
        return tensors

    def question(self, shape: Shape) -> Question:
        """Return the loader's question for a file of this shape."""
        return self.architecture, json.dumps(self.metadata(shape)), shape.n_vocab


def _usual(s: Shape) -> Metadata:
    return {
        **base(s), "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": s.n_swa,
        "rope.dimension_sections": [s.head_dim // 8] * 4, "full_attention_interval": 2,
        "leading_dense_block_count": s.n_dense, "logit_scale": 1.0, "residual_scale": 1.0,
        "expert_count": s.n_expert, "expert_used_count": s.n_used, "expert_feed_forward_length": s.n_ff_exp,
        "expert_shared_count": s.n_shared, "expert_shared_feed_forward_length": s.n_ff_exp * s.n_shared,
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5,
        "interleave_moe_layer_step": 1, "moe_every_n_layers": 1, "ssm.conv_kernel": 4,
        "ssm.inner_size": 2 * s.n_embd, "ssm.state_size": 32, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    }  # fmt: skip


Question = tuple[str, str, int]
"""Architecture, metadata as JSON, size of the vocabulary (0: the tokenizer's)."""
_answers: dict[Question, Shapes] = {}


def _ask(question: Question) -> Shapes:
    """Return the loader's description.

    The first question includes those of all architectures at their default shapes, because starting the
    process takes long and an answer does not.
    """
    if question not in _answers:
        families = () if _answers else (*LOADER_FAMILIES.values(), *DRAFT_FAMILIES.values())
        others = [family.question(family.default) for family in families]
        others += [each.question(each.default.with_prediction()) for each in families if each.options]
        questions = list(dict.fromkeys((question, *others)))
        with tempfile.TemporaryDirectory() as name:
            files = [_write_metadata(Path(name) / f"{i}.gguf", q) for i, q in enumerate(questions)]
            _answers.update(zip(questions, shapes_of(files), strict=True))
    return _answers[question]


def _write_metadata(path: Path, question: Question) -> Path:
    architecture, metadata, n_vocab = question
    writer = GGUFWriter(path, architecture)
    write_tokenizer(writer, n_vocab)
    add_values(writer, architecture, json.loads(metadata))
    finish(writer)
    return path


_GAINS = {
    "output.weight": 3.0, "ffn_down_exps.weight": 2.0, "attn_sinks.weight": 1.0, "exp_probs_b.bias": 0.05,
}  # fmt: skip
_KINDS: dict[str, tuple[str] | tuple[str, float]] = {
    "ffn_gate_inp.weight": ("router", 1.5), "token_embd.weight": ("embedding",), "ssm_d": ("norm",),
    "ffn_gate_tid2eid.weight": ("ids",),
}  # fmt: skip


def _tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor, filled by the rule for its name."""
    stem = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if "norm" in stem.removesuffix(".bias") and not stem.endswith(".bias"):
        return Tensor(name, shape, "norm")
    if stem.startswith("ssm_a") and "alpha" not in stem:
        return Tensor(name, shape, "decay")
    if stem in _KINDS:
        return Tensor(name, shape, *_KINDS[stem])
    if "scale" in stem:
        return Tensor(name, shape, "norm")
    if len(shape) == 1 or stem.endswith(".bias") or "conv" in stem:
        return Tensor(name, shape, "bias", _GAINS.get(stem, 0.5 if "conv" in stem else 0.2))
    return Tensor(name, shape, "matrix", _GAINS.get(stem, 1.0))


# The families' own metadata: constants, and functions of the shape

_LATENT: Metadata = {
    "attention.q_lora_rank": 32, "attention.kv_lora_rank": 32, "attention.key_length": 48,
    "attention.value_length": 32, "attention.key_length_mla": 48, "attention.value_length_mla": 32,
    "attention.head_count_kv": 1, "rope.dimension_count": 16,
}  # fmt: skip
"""Multi-head latent attention."""
_INDEXER: Metadata = {
    "attention.indexer.head_count": 2, "attention.indexer.key_length": 64, "attention.indexer.top_k": 32,
    "attention.indexer.block_size": 4, "attention.indexer.local_blocks": 1, "attention.indexer.kpool": 4,
}  # fmt: skip
"""Sparse attention: an indexer chooses the positions that are read."""
_HYPER: Metadata = {
    "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
    "hyper_connection.magnitude": 2.0, "hyper_connection.low_rank": 8, "swiglu_clamp_exp": 10.0,
}  # fmt: skip
"""Hyper-connections: several residual streams."""
_ADAPTERS: Metadata = {
    "adapters.token_ids_activate": [32, 33], "adapters.token_ids_substitute": [32, 33], "adapters.count": 2,
    "adapters.lora_rank": 4, "expert_count": 0, "expert_used_count": 0,
}  # fmt: skip
"""No experts: tokens choose adapters, which are applied like experts."""
_ENCODER: Metadata = {
    "attention.causal": False, "moe_every_n_layers": 2, "tokenizer.ggml.token_type_count": 2,
}  # fmt: skip
"""An encoder has embeddings and no logits."""
_DEEPSEEK4: Metadata = {
    **_INDEXER, **_HYPER, "attention.q_lora_rank": 32, "attention.head_count_kv": 1,
    "attention.output_group_count": 2, "attention.output_lora_rank": 16,
    "attention.compress_ratios": [0, 0, 4, 128, 0], "attention.compress_rope_freq_base": 160000.0,
    "rope.dimension_count": 16, "hash_layer_count": 1, "expert_gating_func": 4,
}  # fmt: skip
_DFLASH: Metadata = {"target_layers": [0, 2], "block_size": 4, "tokenizer.ggml.mask_token_id": 271}


def _windows(s: Shape) -> Metadata:
    """Return metadata of a sliding window in every second layer."""
    return {
        "attention.sliding_window_pattern": [il % 2 == 0 for il in range(s.n_layer)],
        "rope.freq_base_swa": 10000.0,
    }


def _hybrid(s: Shape) -> Metadata:
    """Return metadata of attention in every third layer, and a state in the others."""
    attends = [il % 3 == 2 or s.predicts(il) for il in range(s.n_layer)]
    return {"attention.head_count_kv": [s.n_head_kv * each for each in attends]}


def _linear(s: Shape) -> Metadata:
    """Return metadata of latent attention in every second layer, and Kimi's delta attention in the others."""
    return {
        **_LATENT, "attention.head_count_kv": [il % 2 for il in range(s.n_layer)], "kda.head_dim": 32,
        "kda.safe_gate": True, "kda.gate_lower_bound": -5.0,
    }  # fmt: skip


def _latent_windows(s: Shape) -> Metadata:
    """Return metadata of latent attention with equally large heads in layers with a window. The others choose
    positions by an indexer."""
    names = ("kv_lora_rank", "key_length", "value_length", "key_length_mla", "value_length_mla")
    swa = {f"attention.{name}_swa": _LATENT[f"attention.{name}"] for name in names}
    types = {"attention.indexer.types": [il % 2 for il in range(s.n_layer)]}
    return {**_LATENT, **_INDEXER, **_windows(s), **swa, **types, "rope.dimension_count_swa": 16}


def _gemma4(s: Shape) -> Metadata:
    lengths = {f"attention.{name}_length_swa": s.head_dim for name in ("key", "value")}
    return {**_windows(s), **lengths, "embedding_length_per_layer_input": 32}


def _hy_v4(s: Shape) -> Metadata:
    """Return metadata in which every second layer reads the positions that the layer before it chose."""
    types = {"attention.indexer.types": [(il + 1) % 2 for il in range(s.n_layer)]}
    return {**_LATENT, **_INDEXER, **_HYPER, **types}


def _nemotron(s: Shape) -> Metadata:
    """Return metadata in which every layer is a state, experts, or attention alone."""
    return {**_hybrid(s), "feed_forward_length": [s.n_ff * (il % 3 == 1) for il in range(s.n_layer)]}


def _kimi_k3(s: Shape) -> Metadata:
    act = {"activation.situ_beta": 4.0, "activation.situ_linear_beta": 25.0}
    return {**_linear(s), **act, "attn_res.block_size": 2, "expert_latent_length": 64}


def _glm5_next(s: Shape) -> Metadata:
    """Return metadata of latent attention without a rotary part."""
    no_rope = {"rope.dimension_count": 0, "attention.key_length": 32}
    return {**_linear(s), **_INDEXER, **_HYPER, **no_rope}


_WIDE = Shape(n_embd=128)  # heads together are as wide as the model
_FULL = Shape(n_embd=128, n_head_kv=4)
_FOUR = Shape(n_layer=4)
_ONE = Shape(n_layer=1)
_MTP = ("mtp",)

LOADER_FAMILIES: dict[str, LoaderFamily] = {
    family.architecture: family
    for family in (
        LoaderFamily("afmoe"),
        LoaderFamily("bailingmoe"),
        LoaderFamily("bailingmoe3", _linear, rewinds=False, options=_MTP),
        LoaderFamily("cohere2moe", options=_MTP),
        LoaderFamily("deepseek2-ocr", default=_FULL),
        LoaderFamily("deepseek32", lambda s: _LATENT | _INDEXER, options=_MTP),
        LoaderFamily("deepseek4", lambda s: _DEEPSEEK4, default=_FOUR, options=_MTP),
        LoaderFamily("dots3note", _latent_windows),
        LoaderFamily("exaone-moe"),
        LoaderFamily("gemma4", _gemma4, left_out=(".input_scale",)),
        LoaderFamily("glm-dsa", lambda s: _LATENT | _INDEXER, options=_MTP),
        LoaderFamily("glm5-next", _glm5_next, rewinds=False),
        LoaderFamily("granite"),
        LoaderFamily("granite_swa", _windows),
        LoaderFamily("graniteswitch", lambda s: _ADAPTERS),
        LoaderFamily("granitehybrid", _hybrid, rewinds=False),
        LoaderFamily("hy_v3", options=_MTP),
        LoaderFamily("hy_v4", _hy_v4),
        LoaderFamily("jamba", _hybrid, rewinds=False, default=_WIDE),
        LoaderFamily("kimi-k3", _kimi_k3, rewinds=False),
        LoaderFamily("kimi-linear", _linear, rewinds=False),
        LoaderFamily("laguna"),
        LoaderFamily("llada-moe", rewinds=False, default=_WIDE),
        LoaderFamily("llama-embed", embeds=True),
        LoaderFamily("maple", lambda s: {**_windows(s), "swiglu_clamp_exp": 7.0}),
        LoaderFamily("mellum"),
        LoaderFamily("mimo2", _windows),
        LoaderFamily("minicpm"),
        LoaderFamily("minimax-01", rewinds=False),
        LoaderFamily("minimax-m3", lambda s: _INDEXER),
        LoaderFamily("mistral3"),
        LoaderFamily("mistral4", lambda s: _LATENT),
        LoaderFamily("nemotron_h", _nemotron, rewinds=False),
        LoaderFamily("nemotron_h_moe", _nemotron, rewinds=False, options=_MTP),
        LoaderFamily("nomic-bert-moe", lambda s: _ENCODER, rewinds=False, embeds=True, default=_FULL),
        LoaderFamily("qwen35moe", rewinds=False, default=_FOUR, options=_MTP),
        LoaderFamily(
            "qwen4exp",
            lambda s: {**_INDEXER, **_HYPER, "attention.compress_ratios": [4] * s.n_layer},
            rewinds=False,
            default=_FOUR,
        ),
        LoaderFamily("rnd1", rewinds=False),
        LoaderFamily("step35", _windows, options=_MTP),
    )
}

DRAFT_FAMILIES: dict[str, LoaderFamily] = {
    "eagle3": LoaderFamily(
        "eagle3", lambda s: {"target_layers": [0, 1, 2], "target_hidden_size": s.n_embd}, default=_ONE
    ),
    "dflash": LoaderFamily("dflash", lambda s: {**_DFLASH, "attention.sliding_window": 0}, default=_ONE),
    "dflash-moe": LoaderFamily(
        "dflash",
        lambda s: {
            **_DEEPSEEK4, **_DFLASH, "attention.compress_ratios": [0] * s.n_layer,
            "rope.dimension_sections": [0] * 4,
        },
        default=Shape(n_layer=2),
    ),
}  # fmt: skip
"""Draft models that read a target's hidden states. "dflash-moe" has DeepSeek V4's layers, with experts."""
