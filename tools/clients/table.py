"""The clients that are tried, with their exact versions, and how they are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from spac.errors import InputError, one_line

INSTALL_S = 300
"""Seconds that a step of a client's installation may take."""


@dataclass(frozen=True)
class Client:
    """A client or framework of PyPI, or of npm where `is_node` is True.

    `packages` are words of pip or npm; the first one names it and its version. `scripts/NAME` tries it.
    """

    name: str
    packages: tuple[str, ...]
    interface: str = "chats"
    is_node: bool = False

    @property
    def package(self) -> str:
        """The first package's name."""
        name = self.packages[0].rpartition("@" if self.is_node else "==")[0].rstrip("=")
        return name.partition("[")[0]

    @property
    def version(self) -> str:
        """The first package's version."""
        return self.packages[0].rpartition("@" if self.is_node else "=")[2]

    def install(self, folder: Path) -> str:
        """Install the client into `folder`, unless an earlier run has. Return its version there. Raise
        InputError if it cannot be installed."""
        stamp, words = folder / "installed", " ".join(self.packages)
        commands = [
            [sys.executable, "-m", "venv", "venv"],
            ["venv/bin/python", "-m", "pip", "install", "--quiet", *self.packages],
        ]
        if self.is_node:
            commands = [["npm", "install", "--no-audit", "--no-fund", *self.packages]]
        if not stamp.is_file() or stamp.read_text() != words:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text("{}")
            for command in commands:
                _do(command, folder)
            stamp.write_text(words)
        if self.is_node:
            file = folder / "node_modules" / self.package / "package.json"
            return str(json.loads(file.read_text())["version"])
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        return _do(["venv/bin/python", "-c", code], folder).strip()


def _do(command: list[str], folder: Path) -> str:
    """Return what a command prints. Raise InputError if it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"not installed: {one_line(str(error))}") from None
    if done.returncode != 0:
        raise InputError(f"not installed: {one_line((done.stderr or done.stdout)[-300:])}")
    return done.stdout


CLIENTS = (
    Client("openai", ("openai==3.57.0",), "completions, chats, Responses, embeddings"),
    Client("openai_agents", ("openai-agents==0.24.0",), "Responses and chats"),
    Client("anthropic", ("anthropic==2.14.0",), "Messages"),
    Client("langchain", ("langchain-openai==1.7.4",), "chats, Responses, embeddings"),
    Client("litellm", ("litellm==1.110.2",), "chats, Messages, embeddings"),
    Client("pydantic_ai", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("instructor", ("instructor==1.17.0",)),
    Client("smolagents", ("smolagents[openai]==1.26.0",)),
    Client("haystack", ("haystack-ai==3.4.1",), "chats, embeddings"),
    Client("llama_index", ("llama-index-llms-openai-like==0.8.1",), "completions, chats"),
    Client("dspy", ("dspy==3.4.1",)),
    Client("autogen", ("autogen-ext[openai]==0.7.5", "autogen-agentchat==0.7.5")),
    Client("ag2", ("ag2[openai]==1.2.1",)),
    Client("crewai", ("crewai==1.15.30",)),
    Client("lm_eval", ("lm-eval[api]==0.4.13",), "completions"),
    Client("openai_node", ("openai@7.59.0",), "completions, chats, Responses, embeddings", is_node=True),
    Client("anthropic_node", ("@anthropic-ai/sdk@1.14.0",), "Messages", is_node=True),
    Client("vercel_ai", ("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"), is_node=True),
)
