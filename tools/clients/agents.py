"""Run a coding agent against `spac serve`, and record the shapes of its requests for the tests:

    python -m tools.clients.agents NAME [--folder FOLDER]

This writes tests/serve/agents/NAME.json. The agent works in an empty folder, with a home of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spac.errors import InputError, one_line
from tools.clients.recorder import Call, recording
from tools.clients.serving import KEY, RECORDS, served
from tools.clients.shapes import laid_out
from tools.clients.table import Client

AGENT_S = 200
"""Seconds that an agent may take."""


@dataclass(frozen=True)
class Agent:
    """A coding agent of npm: its command, settings and variables, in which {url} is the server's address."""

    package: str
    command: tuple[str, ...]
    calls: tuple[Call, ...]
    """The tools that the answers to its first requests call."""
    files: dict[str, str] = field(default_factory=dict)
    """Its settings by path in its home."""
    variables: dict[str, str] = field(default_factory=dict)


CODEX = """\
model = "gpt-5.5"
model_provider = "spac"
[model_providers.spac]
name = "spac"
base_url = "{url}/v1"
env_key = "SPAC_KEY"
wire_api = "responses"
"""
OPENCODE = {
    "provider": {
        "spac": {
            "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{url}/v1", "apiKey": KEY},
            "models": {"demo": {"limit": {"context": 30000, "output": 1000}}},
        }
    },
    "autoupdate": False, "share": "disabled",
}  # fmt: skip
AGENTS = {
    "codex": Agent(
        "@openai/codex@0.171.0",
        ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "hello"),
        (("exec_command", {"cmd": "ls"}), ("apply_patch", None)),
        {".codex/config.toml": CODEX},
        {"SPAC_KEY": KEY},
    ),
    "opencode": Agent(
        "opencode-ai@1.18.33",
        ("opencode", "run", "--pure", "--auto", "-m", "spac/demo", "hello"),
        (("bash", {"command": "ls", "description": "list"}), ("read", {"filePath": "a.txt"})),
        {".config/opencode/opencode.json": json.dumps(OPENCODE)},
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    "qwen-code": Agent(
        "@qwen-code/qwen-code@0.24.4",
        ("qwen", "--yolo", "--auth-type", "openai", "-p", "hello"),
        (("run_shell_command", {"command": "ls", "is_background": False}), ("glob", {"pattern": "*"})),
        {".qwen/settings.json": '{"privacy": {"usageStatisticsEnabled": false}}'},
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": "demo"},
    ),
    "claude-code": Agent(
        "@anthropic-ai/claude-code@2.1.332",
        ("claude", "-p", "hello", "--allowedTools", "Bash"),
        (("Bash", {"command": "ls"}), ("Read", {"file_path": "a.txt"})),
        {},
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": KEY, "DISABLE_TELEMETRY": "1",
         "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
}  # fmt: skip


def record(name: str, agent: Agent, folder: Path, work: Path, address: str) -> dict:
    """Run an agent, and return its record. Raise InputError if it asks for nothing."""
    client = Client(name, (agent.package,), is_node=True)
    version = client.install(folder)
    home, place = work / "home", work / "place"
    place.mkdir()
    with recording(address, KEY, agent.calls) as (url, seen):
        filled = lambda text: text.replace("{url}", url)  # noqa: E731
        for path, text in agent.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(filled(text))
        home.mkdir(exist_ok=True)
        variables = {each: filled(text) for each, text in agent.variables.items()}
        command = [str(folder / "node_modules/.bin" / agent.command[0]), *agent.command[1:]]
        try:
            done = subprocess.run(
                command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=AGENT_S,
                env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
            )  # fmt: skip
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            said = f"{error}: {error.stdout!r} {error.stderr!r}"
    if not seen:
        raise InputError(f"{name} asked for nothing: {one_line(said[-500:])}")
    for each in seen:
        print(each["path"], each.pop("status"), sorted(each["request"]))
    print(said[-1500:])
    calling = [each for each in seen if each["request"].get("tools")]
    again = calling[len(agent.calls) + 1 :]
    kept = [each for each in seen if each not in again]
    tools: list = []
    for each in kept:  # each set of tools is kept once
        if given := each["request"].get("tools"):
            if given not in tools:
                tools.append(given)
            each["request"]["tools"] = tools.index(given)
    return {"agent": client.package, "version": version, "tools": tools, "requests": kept}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if the agent's requests were recorded."""
    parser = argparse.ArgumentParser(prog="python -m tools.clients.agents", description=__doc__)
    parser.add_argument("name", choices=AGENTS)
    parser.add_argument("--folder", type=Path, help="of the installations (default: a temporary one)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = Path(args.folder or work / "installed").resolve() / args.name
        try:
            with served(work, "--ctx", "32768") as url:
                made = record(args.name, AGENTS[args.name], folder, work, url.removesuffix("/v1"))
        except InputError as error:
            print(one_line(str(error)), file=sys.stderr)
            return 1
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{args.name}.json").write_text(laid_out(made) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
