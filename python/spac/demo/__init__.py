"""The demo pair that ships with the package: a small MoE target and a dense draft; see MODEL_CARD.md."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent

#: The Mixture-of-Experts target (qwen3moe) and its draft (qwen3). Both share one tokenizer.
TARGET = _FOLDER / "target.gguf"
DRAFT = _FOLDER / "draft.gguf"

#: A prompt and sampling parameters that give a story, not a repetition loop.
PROMPT = "Once upon a time, there was a little dog who wanted to fly."
SAMPLING: dict[str, float | int] = {"temp": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
