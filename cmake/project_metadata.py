"""The project's metadata that is written elsewhere: our version, and the pinned llama-cpp-python as a
dependency."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Called by scikit-build-core with pyproject's settings for this provider; returns a fragment of
    [project]."""
    text = (ROOT / "python" / "spac" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    pin = re.search(r"^version (\S+)", (ROOT / "LLAMA_CPP_VERSION").read_text(encoding="utf-8"), re.MULTILINE)
    if version is None or pin is None:
        raise RuntimeError("no version in python/spac/__init__.py or in LLAMA_CPP_VERSION")
    return {"version": version[1], "dependencies": [*settings["dependencies"], f"llama-cpp-python=={pin[1]}"]}
