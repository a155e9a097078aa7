"""Upstream's own operator tests, compiled from the pinned source, pass on the patched library.

Only a part of them runs by default. SPAC_UPSTREAM_TESTS=all runs all of mul_mat_id's and add_id's (minutes).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spac import _library
from tests.compiled import compiler_and_cpu, kept
from tools.patches import source

pytestmark = pytest.mark.nightly

PROGRAM = "tests/test-backend-ops.cpp"
HEADERS = [f"ggml/include/{name}.h" for name in ("ggml", "ggml-alloc", "ggml-backend", "ggml-cpp", "gguf")]
PART = "type_a=(f16|q4_0|q4_K|mxfp4),type_b=f32,n_mats=4,n_used=2,b=.,m=512,n=(1|17),k=256|n_experts_used="

# Without optimization, the program spends most of its time in these headers' functions. It removes test cases
# from its list. With optimization everywhere, it takes twice as long to compile.
OPTIMIZED = """
#pragma GCC push_options
#pragma GCC optimize("O2")
#include <algorithm>
#include <memory>
#include <vector>
#pragma GCC pop_options
"""


@pytest.fixture(scope="module")
def program(compiled_store):
    if source.sdist() is None:
        pytest.skip("llama.cpp's sdist is not in the cache: no build has fetched it here")
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    texts = source.published(PROGRAM, *HEADERS)
    options = ["-std=c++17", "-O0", "-w", "-include", "optimized.h", "-Wl,--allow-shlib-undefined"]

    def make(folder: Path) -> None:
        for name, text in texts.items():
            (folder / Path(name).name).write_text(text)
        (folder / "optimized.h").write_text(OPTIMIZED)
        # The program looks for the library by its SONAME.
        (folder / "libspac-llama.so").symlink_to(_library.library_path())
        done = subprocess.run(
            ["g++", *options, "-I", folder, folder / Path(PROGRAM).name, "-o", folder / "program",
             folder / "libspac-llama.so", "-Wl,-rpath,$ORIGIN"],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    parts = [*map(str, texts.values()), OPTIMIZED, repr(options), str(_library.library_path())]
    return kept(compiled_store, "upstream", [*parts, compiler_and_cpu("g++")], make) / "program"


def test_mul_mat_id_and_add_id(program):
    part = [] if os.environ.get("SPAC_UPSTREAM_TESTS") == "all" else ["-p", PART]
    done = subprocess.run(
        [program, "test", "-b", "CPU", "-o", "MUL_MAT_ID,ADD_ID", *part],
        capture_output=True, text=True, timeout=1800, env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in done.stdout.splitlines()]
    for op in ("MUL_MAT_ID", "ADD_ID"):
        assert any(line.startswith(f"  {op}(") and line.endswith(": OK") for line in lines), done.stderr[
            -2000:
        ]
    assert not [line for line in lines if "FAIL" in line]
    assert done.returncode == 0, done.stderr[-2000:]
