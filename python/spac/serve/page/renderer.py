"""The process that turns Markdown into HTML, and reads PDF files.

Both are Python, which would keep the engine's steps and other requests waiting in the server's process.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import subprocess
import sys
import threading
from pathlib import Path

from starlette.concurrency import run_in_threadpool

LONGEST_TEXT = 200_000
"""The most characters of Markdown that are rendered."""
LONGEST_S = 10.0
"""The most seconds that a job takes."""
MOST_JOBS = 32
"""The most jobs that run or wait. A browser asks for six at a time."""
PROGRAM = Path(__file__).with_name("rendering.py")


def plain_html_of(text: str) -> str:
    """Return the HTML that shows a text as it is."""
    shown = f"<pre>{html.escape(text)}</pre>"
    return f'<div class="code" tabindex="0" role="group" aria-label="Text">{shown}</div>'


class Renderer:
    """Does one job at a time, in a process that starts with the first one."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = asyncio.Lock()
        self._n_here = 0

    async def html_of(self, text: str) -> str:
        """Return the HTML of a text in Markdown. A text that is too much is shown as it is."""
        made = await self._do("markdown", text) if len(text) <= LONGEST_TEXT else ""
        return made or plain_html_of(text)

    async def pdf_text(self, data: bytes) -> str:
        """Return the text of a PDF file, or "" if it has none that can be read."""
        return await self._do("pdf", base64.b64encode(data).decode())

    async def _do(self, job: str, data: str) -> str:
        if self._n_here >= MOST_JOBS:
            return ""
        self._n_here += 1
        try:
            async with self._lock:
                made: str = await run_in_threadpool(self._ask, job, data)
                return made
        finally:
            self._n_here -= 1

    def _ask(self, job: str, data: str) -> str:
        """Return the job's result, or "" if the process ends or needs too long. The next job gets another."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, start_new_session=True,  # Ctrl-C is the server's
            )  # fmt: skip
        process, answer = self._process, ""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._longest_s, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps([job, data]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it has ended
            pass
        finally:
            timer.cancel()
        if not answer.endswith("\n"):
            self.close()
            return ""
        return str(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
