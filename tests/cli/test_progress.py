"""A terminal shows progress while one waits. The line is overwritten, and gone before the text begins."""

from __future__ import annotations

import sys

import pytest

from tests.cli.conftest import environment

pexpect = pytest.importorskip("pexpect")


@pytest.mark.parametrize(("more", "shown"), [((), True), (("--quiet",), False)])
def test_reading_a_long_prompt(tmp_path, more, shown):
    prompt = "def f(x):\n    return x\n" * 40
    arguments = ["-m", "spac.run", "--device", "cpu", "--threads", "1", "-n", "4", "--stats", "none", *more]
    child = pexpect.spawn(
        sys.executable,
        [*arguments, "--prompt", prompt],
        cwd=str(tmp_path),
        env=environment(),
        encoding="utf-8",
        timeout=60,
        dimensions=(24, 80),
    )
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert ("reading the prompt: 0 of " in child.before) == shown
    if shown:
        after = child.before.rsplit("reading the prompt", 1)[1]
        assert "\r\x1b[K" in after  # the line was removed
