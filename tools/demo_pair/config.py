"""Define the shapes of the two models."""

from __future__ import annotations

from dataclasses import dataclass

from .tokenizer import VOCAB_SIZE

CONTEXT_LENGTH = 2048


@dataclass(frozen=True)
class ModelConfig:
    """A Qwen3-form transformer. ``experts == 0`` means a dense feed-forward of ``ffn`` rows."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    experts: int = 0
    experts_used: int = 0
    vocab: int = VOCAB_SIZE
    context: int = CONTEXT_LENGTH
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name for this form."""
        return "qwen3moe" if self.experts else "qwen3"


TARGET = ModelConfig(
    layers=5, width=256, heads=4, kv_heads=2, head_dim=64, ffn=128, experts=32, experts_used=4
)
DRAFT = ModelConfig(layers=2, width=256, heads=4, kv_heads=2, head_dim=64, ffn=512)
