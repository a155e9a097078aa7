"""A terminal shows progress while one waits. The line is overwritten, and gone before the text begins."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from spac.cli import program
from spac.engine.prompt_progress import Reading
from tests.cli.conftest import environment

pexpect = pytest.importorskip("pexpect")


@pytest.mark.parametrize(("more", "shown"), [((), True), (("--quiet",), False)])
def test_reading_a_long_prompt(tmp_path, more, shown):
    prompt = "def f(x):\n    return x\n" * 40
    arguments = ["-m", "spac.run", "--device", "cpu", "--threads", "1", "-n", "4", "--stats", "none", *more]
    child = pexpect.spawn(
        sys.executable, [*arguments, "--prompt", prompt],
        cwd=str(tmp_path), env=environment(), encoding="utf-8", timeout=60, dimensions=(24, 80),
    )  # fmt: skip
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert ("reading the prompt: 0 of " in child.before) == shown
    if shown:
        after = child.before.rsplit("reading the prompt", 1)[1]
        assert "\r\x1b[K" in after  # the line was removed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("quiet", "shown"), [(False, True), (True, False)])
def test_the_line_follows_the_estimate(monkeypatch, quiet, shown):
    """Between two reports of the loop, a thread shows what the engine estimates."""
    readings = [Reading(n, 4096, 3.0, 9.0 - n / 512) for n in (512, 1024, 1536)]
    asked = threading.Event()

    class Progress:
        def now(self):
            if len(readings) == 1:
                asked.set()
            return readings.pop(0) if len(readings) > 1 else readings[0]

    monkeypatch.setattr(program, "READING_S", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    engine, talk = SimpleNamespace(reading=Progress()), program.Talk(quiet)
    read = talk.reads(engine)
    assert (read is not None) == shown
    if read is None:
        return
    read(0, 4096)
    assert asked.wait(30)
    engine.reading.now = lambda: None
    read(4096, 4096)
    text = sys.stderr.getvalue()
    assert "reading the prompt: 0 of 4096 tokens\r" in text
    assert "tokens, about 7 s left\r" in text
    assert text.endswith("\r\x1b[K")
