"""What the documents show works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spac.demo as demo
from tests.cli.conftest import environment
from tests.cli.options_page import PAGE, page

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "openai" not in code]
"""The client of the server is tests/serve's."""


@pytest.fixture
def folder(tmp_path):
    """Has the model and the draft that the documents speak of."""
    (tmp_path / "model.gguf").symlink_to(demo.TARGET)
    (tmp_path / "draft.gguf").symlink_to(demo.DRAFT)
    return tmp_path


def run(command, folder):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.split("\n")[0])
def test_examples_in_python(code, folder):
    out = run(["-c", code], folder)
    assert "tokens/s" in out  # both show their figures
    assert len(out) > 100


def test_recording_and_report(folder):
    [commands] = [block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "--record" in block]
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "spac"
        run(["-m", "spac", *arguments], folder)
    assert "</html>" in (folder / "run.html").read_text()


def test_every_option_is_on_its_page():
    assert page() == PAGE.read_text(), "python -m tests.cli.options_page writes it anew"
