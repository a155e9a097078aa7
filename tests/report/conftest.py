"""Fixtures: a recording of the demo pair, made once, and the browser, where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import Browser, find

TIMEOUT_S = 120


@dataclass(frozen=True)
class Outcome:
    """The output and exit code of a program."""

    code: int
    out: bytes
    err: str


def spac(*arguments: object, cwd: Path, stdin: bytes | None = None) -> Outcome:
    """Run a program of spac as a user starts it: `spac("run", "--temp", 0, cwd=folder)`."""
    name, *options = map(str, arguments)
    done = subprocess.run(
        [sys.executable, "-m", "spac", name, *options], cwd=cwd, input=stdin or b"", capture_output=True,
        timeout=TIMEOUT_S, env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of the demo pair. It has 5 layers of 32 experts, drafts, thresholds, a governor."""
    folder = tmp_path_factory.mktemp("recorded")
    done = spac(
        "run", "--scheduler", "moe-spac", "--device", "simulated", "--threads", 1, "-n", 150, "--temp", 0,
        "--record", "run.npz", "--stats-file", "stats.json", "-q", cwd=folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder / "run.npz"


def report_of(path: Path) -> bytes:
    """Return the report in a recording."""
    with zipfile.ZipFile(path) as file:
        return file.read("report.json")


@pytest.fixture
def content(recorded: Path) -> dict[str, Any]:
    """Return a copy of that recording's content, which a test may change."""
    return json.loads(report_of(recorded))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("no Chromium or Chrome here to show the page in")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    """Return `show(content, width=390)`, which opens the page of a recording in the browser."""
    from spac.report.figures import Recording
    from spac.report.page import page

    def open_page(
        content: dict[str, Any], *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> Browser:
        path = tmp_path / "page.html"
        path.write_text(page(Recording(content)))
        browser.view(width, height, dark=dark, phone=width < 500)
        browser.open(path)
        return browser

    return open_page
