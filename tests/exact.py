"""A target, settings and prompts for texts that no batch's size changes.

What a batch has beside a sequence changes rounding. Weights of four bits round activations to integers, so
routers change their choices, and now and then a greedy text. In float32 a difference is a millionth of the
margins between the best two tokens.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from spac import demo
from tools.self_draft import quantize

PROMPTS = (
    "There was once a boy named Tom who won a race at school.",
    "There was once an old man who met a stranger in a small village.",
    "One night, a clown had a birthday in the park.", "One day, a kind giant got lost in an old house.",
    "There was once a tiny ant who found a map in an old house.",
)  # fmt: skip
"""Prompts whose greedy continuations of 80 tokens meet no near tie."""
CACHE = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
"""Settings of a cache that rounds nothing."""

_folder = tempfile.TemporaryDirectory(prefix="spac-tests-")


@functools.cache
def target() -> Path:
    """Return the bundled target in float32. The process writes it at the first call."""
    return quantize(demo.TARGET, Path(_folder.name) / "target-F32.gguf", "F32")
