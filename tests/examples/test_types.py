"""Programs that use spac pass `mypy --strict` as a user runs it, and slips of the pen do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_docs import EXAMPLES

pytestmark = pytest.mark.nightly

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parents[2]
# The unchanged app uses llama_cpp's own types, which take its answers for streams too.
PROGRAMS = [path for path in (ROOT / "examples").glob("*.py") if path.name != "unchanged_app.py"]
SLIPS = """
import spac

llm = spac.Llama("model.gguf", slot="25%")
spac.Llama("model.gguf", n_ctx="many")
spac.Llama("model.gguf", slots=[])
spac.enable(drafts="draft.gguf")
llm("def f(", max_token=3)
llm.stats.tables()
for token in llm.generate([1], top_k="few"):
    pass
"""


def test_as_a_user_checks_them(tmp_path):
    for number, code in enumerate(EXAMPLES):
        (tmp_path / f"document_{number}.py").write_text(code)
    (tmp_path / "slips.py").write_text(SLIPS)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file="]
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path}", *tmp_path.glob("*.py"), *PROGRAMS],
        env={**os.environ, "MYPYPATH": str(ROOT / "python")}, cwd=tmp_path, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    errors = re.findall(r"^(\S+?):(\d+): error: .*?\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    wanted = [n for n, line in enumerate(SLIPS.splitlines(), 1) if "(" in line]
    assert [(name, int(line)) for name, line, _ in errors] == [("slips.py", n) for n in wanted], done.stdout
