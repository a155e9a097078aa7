"""Install clients, each into a folder of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spac.errors import InputError, one_line
from tools.clients.table import Client

INSTALL_S = 300
"""Seconds that the installation of a client may take."""


def install(client: Client, folder: Path) -> None:
    """Install a client into `folder`, unless an earlier run has. Raise InputError if it cannot be."""
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == " ".join(client.packages):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.is_node:
        (folder / "package.json").write_text("{}")
        _do(["npm", "install", "--no-audit", "--no-fund", *client.packages], folder)
    else:
        _do([sys.executable, "-m", "venv", "venv"], folder)
        _do(["venv/bin/python", "-m", "pip", "install", "--quiet", *client.packages], folder)
    stamp.write_text(" ".join(client.packages))


def version(client: Client, folder: Path) -> str:
    """Return the version of the client that is installed in `folder`."""
    if client.is_node:
        file = folder / "node_modules" / client.package / "package.json"
        return str(json.loads(file.read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({client.package!r}))"
    return subprocess.check_output([folder / "venv/bin/python", "-c", code], text=True).strip()


def _do(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the installation took over {INSTALL_S} s") from None
    except OSError as error:
        raise InputError(one_line(str(error))) from None
    if done.returncode != 0:
        raise InputError(f"not installed: {one_line((done.stderr or done.stdout)[-300:])}")
