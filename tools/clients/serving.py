"""A server for clients to try: the demo pair on the simulated device, with a template that has tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spac.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests" / "serve" / "agents"
"""The folder of what agents sent."""
TEMPLATE = Path(__file__).parent / "template.jinja"
"""ChatML with reasoning and calls of tools."""
KEY = "a-key"
OPTIONS = (
    "--device", "simulated", "--port", "0", "--ctx", "8192", "--parallel", "2", "--temp", "0",
    "--reasoning", "off", "--embeddings", "--pooling", "last", "--chat-template-file", str(TEMPLATE),
)  # fmt: skip
"""The model does not reason, because its texts mean nothing."""


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """Start a server that writes its log into `folder`. Yield its address, which ends in /v1."""
    command = [sys.executable, "-m", "spac", "serve", *OPTIONS, *options]
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "SPAC_API_KEY": KEY, "OMP_WAIT_POLICY": "passive"}
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=given)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if not url:
            raise InputError(f"no server: {(folder / 'server.log').read_text()[-500:]}")
        yield url
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
