"""Short names of published models: `gpt-oss-20b` stands for a repository on the model hub.

The sizes are those of the table in docs/quickstart.md, which a test compares with them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A published model. It has the sizes that `spac.model.devices.fit` reads, before it is downloaded."""

    name: str
    hub: str
    """OWNER/REPO[:QUANT] on the hub."""
    quant: str
    file_gb: float
    """The size of all files in GB, which are 10^9 bytes."""
    experts_gb: float
    """The part of it that is experts, in GB."""
    n_expert_layers: int
    n_expert: int
    """The number of experts of a layer."""
    n_expert_used: int
    active: float
    """The parameters that compute a token, in billions."""
    rows_gb: float = 0.0
    """The part of the files that stays in host memory because a token reads rows of it, in GB."""

    is_moe = True

    @property
    def file_size(self) -> int:
        """The bytes of all files."""
        return round(self.file_gb * 1e9)

    @property
    def device_bytes(self) -> int:
        """The bytes that a device holds at most."""
        return self.file_size - round(self.rows_gb * 1e9)

    @property
    def expert_bytes(self) -> int:
        """The bytes of all experts."""
        return round(self.experts_gb * 1e9)

    @property
    def n_experts(self) -> int:
        """The number of experts of all layers."""
        return self.n_expert_layers * self.n_expert


MODELS = (
    KnownModel("deepseek-v2-lite", "mradermacher/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M", "Q4_K_M",
               10.4, 9.53, 26, 64, 6, 2.4),
    KnownModel("gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12.1, 10.15, 24, 32, 4, 3.6),
    KnownModel("qwen3-30b-a3b", "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M", "Q4_K_M", 18.6, 17.55, 48, 128, 8, 3.3),
    KnownModel("qwen3-coder-30b-a3b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M", "Q4_K_M",
               18.6, 17.55, 48, 128, 8, 3.3),
    KnownModel("qwen3.6-35b-a3b", "unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M", "Q4_K_M",
               21.2, 19.5, 40, 256, 8, 3.0),
    KnownModel("gpt-oss-120b", "ggml-org/gpt-oss-120b-GGUF", "MXFP4", 63.4, 60.9, 36, 128, 4, 5.1),
    KnownModel("glm-4.5-air", "unsloth/GLM-4.5-Air-GGUF:Q4_K_M", "Q4_K_M", 73.0, 67.6, 46, 128, 8, 12.0),
    KnownModel("qwen3.8-flash-next", "unsloth/Qwen3.8-Flash-Next-GGUF:UD-Q4_K_XL", "UD-Q4_K_XL",
               111.0, 78.8, 48, 512, 10, 6.0, rows_gb=28.8),
    KnownModel("deepseek-v4-flash", "unsloth/DeepSeek-V4-Flash-GGUF:UD-Q4_K_XL", "UD-Q4_K_XL",
               155.0, 147.2, 43, 256, 6, 13.0),
)  # fmt: skip
"""The models with a short name, by size. gpt-oss has one quantization in its repositories."""
_BY_NAME = {model.name: model for model in MODELS}


def hub_name(text: str) -> str:
    """Return OWNER/REPO[:QUANT] for a short name, which may have a :QUANT of its own; "" for other texts."""
    short, _, quant = text.partition(":")
    model = _BY_NAME.get(short.lower())
    return "" if model is None else f"{model.hub.partition(':')[0]}:{quant}" if quant else model.hub


def near(text: str) -> str:
    """Return the short names that are like a text, for messages; "" if none is, and for paths."""
    short = "" if "/" in text else text.partition(":")[0].lower()
    return " or ".join(difflib.get_close_matches(short, _BY_NAME, n=3))
