"""A file that passes the check of the header, but would make llama.cpp end the process, gets one line."""

import subprocess
import sys

import pytest

from tests.model.gguf.files import rewritten
from tools.models import Shape

# The first error occurs when a context is made.
METADATA = {"rope narrower than a head": {".rope.dimension_count": 2}}


@pytest.mark.parametrize("name", METADATA)
def test_a_file_that_llama_cpp_gives_up_on_is_one_line(name, tiny_model, tmp_path):
    good = tiny_model("qwen3moe", Shape())
    bad = rewritten(good, tmp_path / "bad.gguf", dict(METADATA[name]))
    command = [sys.executable, "-m", "spac.run", "--target", str(bad), "--prompt", "x", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("spac: ")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert "bad.gguf" in lines[0]
    assert done.stdout == ""
