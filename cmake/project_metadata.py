"""Provide the project's metadata that other files hold: our version, and the pinned llama-cpp-python as an
extra."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fragment of [project].

    scikit-build-core calls this with pyproject's settings for this provider. tools/wheel.py names further
    dependencies of a wheel in the environment.
    """
    text = (ROOT / "python" / "spac" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    pin = re.search(r"^version (\S+)", (ROOT / "LLAMA_CPP_VERSION").read_text(encoding="utf-8"), re.MULTILINE)
    if version is None or pin is None:
        raise RuntimeError("no version in python/spac/__init__.py or in LLAMA_CPP_VERSION")
    extras = {"llama-cpp-python": [f"llama-cpp-python=={pin[1]}"]}
    needs = os.environ.get("SPAC_WHEEL_REQUIRES", "").split()
    return {"version": version[1], "dependencies": needs, "optional-dependencies": extras}
