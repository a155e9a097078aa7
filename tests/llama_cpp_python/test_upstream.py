"""llama-cpp-python's own tests pass on spac's library, without and with the split."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import SubprocessError

import pytest

from tests.llama_cpp_python import upstream
from tests.llama_cpp_python.conftest import TARGET
from tests.session.recurrent import write_mamba
from tools.models import FAMILIES, write_model

pytestmark = pytest.mark.nightly

# These tests compare with the text that one certain model writes, or with numbers of its vocabulary.
NEED_THE_DOWNLOAD = ("test_real_model", "test_real_llama", "test_real_llama_repeated_prompt_cache")
N_TESTS = 23
MODES = "plain", "enable"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama_cpp_python")
    try:
        upstream.unpack_tests(folder)
    except (upstream.llama_source().SourceError, OSError, SubprocessError) as error:
        pytest.skip(f"the sdist of llama-cpp-python cannot be had: {error}")
    return folder


def write_embedding_model(path: Path) -> Path:
    """Write a model with experts that pools its outputs into one vector, their mean. Return its path."""
    family = FAMILIES["qwen3moe"]
    pooled = replace(family, metadata=lambda shape: {**family.metadata(shape), "pooling_type": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "pooled", pooled)
        return write_model(path, "pooled")


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model):
    """Return JSON that maps each file that the tests would download to one of our files of the same kind."""
    folder = tmp_path_factory.mktemp("models")
    ours = {
        "Qwen3.5-0.8B-Q8_0.gguf": TARGET,
        "tinyllamas/stories15M-q4_0.gguf": TARGET,
        "bge-small-en-v1.5-q4_k_m.gguf": write_embedding_model(folder / "embedding.gguf"),
        "mamba-130m-hf.Q2_K.gguf": write_mamba(folder / "mamba.gguf"),
        "Falcon-H1-Tiny-90M-Instruct-Q2_K.gguf": tiny_model("lfm2moe"),
    }
    return json.dumps({name: str(path) for name, path in ours.items()})


@pytest.fixture(scope="module")
def runs(sources, models):
    """Return the outcome of the tests in each mode. The modes run at the same time, with one thread each."""
    with ThreadPoolExecutor() as pool:
        running = {
            mode: pool.submit(upstream.run_tests, sources, mode, models, NEED_THE_DOWNLOAD) for mode in MODES
        }
    return {mode: run.result() for mode, run in running.items()}


@pytest.mark.parametrize("mode", MODES)
def test_own_tests(runs, mode):
    done = runs[mode]
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{N_TESTS} passed, {len(NEED_THE_DOWNLOAD)} deselected" in done.stdout
