"""Try clients and agent frameworks: `python -m tools.clients [--only NAME …] [--page FILE]`.

Each is installed at the version of table.py, into an environment of its own in `--folder`, where a second
run finds it. Its script in scripts/ then asks `spac serve` with the demo pair on the simulated device. The
answers of that model mean nothing, so grammars, schemas and named tools fix what is checked. It needs PyPI,
and npm for some.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spac.errors import InputError, one_line
from tools.clients.serving import KEY, RECORDS, ROOT, served
from tools.clients.table import CLIENTS, Client

SCRIPT_S = 150
"""Seconds that the script of a client may take."""
END = "all checks were made"
"""The last line of a script."""
SCRIPTS = Path(__file__).parent / "scripts"
PAGE = ROOT / "docs" / "clients.md"
ODD = str.maketrans("|`", "/'")
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "true",
    "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_DISABLE_TRACKING": "true", "CREWAI_TRACING_ENABLED": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "False", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
}  # fmt: skip
"""Variables that keep clients from asking other hosts."""


@dataclass
class Result:
    """The checks of a client: those that passed, and the faults of the others by name."""

    client: Client
    version: str = ""
    passed: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def attempt(client: Client, folder: Path, url: str) -> Result:
    """Install a client and run its script."""
    result = Result(client, client.version)
    try:
        result.version = client.install(folder)
        for check, fault in checks(client, folder, url):
            if fault is None:
                result.passed.append(check)
            else:
                result.faults[check] = one_line(fault)[:400]
    except InputError as error:
        result.faults["the client"] = str(error)
    return result


def checks(
    client: Client, folder: Path, url: str, python: str = "venv/bin/python"
) -> Iterator[tuple[str, str | None]]:
    """Run a client's script. Yield each check with its fault, or None. Raise InputError if it breaks off."""
    given = json.dumps({"url": url, "key": KEY})
    if client.is_node:
        for file in ("shared.mjs", f"{client.name}.mjs"):
            shutil.copy(SCRIPTS / file, folder / file)
        command = ["node", f"{client.name}.mjs", given]
    else:
        command = [python, "-m", f"tools.clients.scripts.{client.name}", given]
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    ours = {"HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with open(folder / "script.log", "w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, cwd=folder, env={**kept, **QUIET, **ours}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, timeout=SCRIPT_S,
        )  # fmt: skip
    lines = (folder / "script.log").read_text().splitlines()
    made = [json.loads(line) for line in lines if line.startswith('{"check"')]
    yield from ((each["check"], each["fault"]) for each in made)
    if END not in lines:
        raise InputError(f"its script broke off: {' '.join(lines[-3:])[-300:]}")


def agent_row(file: Path) -> str:
    """Return the row of an agent's record."""
    record = json.loads(file.read_text())
    paths = sorted({each["path"] for each in record["requests"]})
    return f"| {record['agent']} | {record['version']} | {', '.join(paths)} | {len(record['requests'])} |"


def page(results: Sequence[Result]) -> str:
    """Return docs/clients.md with the tables of these results and of the agents' records."""
    rows = []
    for each in results:
        faults = "; ".join(f"{name}: `{fault.translate(ODD)}`" for name, fault in each.faults.items())
        name = each.client.package + (" (npm)" if each.client.is_node else "")
        cells = (name, each.version, each.client.interface, ", ".join(each.passed), faults)
        rows.append(f"| {' | '.join(cells)} |")
    tables = iter((rows, [agent_row(file) for file in sorted(RECORDS.glob("*.json"))]))
    text = re.sub(r"on \d{4}-\d\d-\d\d", f"on {time.strftime('%Y-%m-%d')}", PAGE.read_text(), count=1)
    return re.sub(
        r"(?<=\n)(\|.*\n\| ---.*)(?:\n\|.*)*", lambda head: "\n".join([head[1], *next(tables)]), text
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all checks of all clients passed, 1 if not, and 2 for a wrong name."""
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    names = [client.name for client in CLIENTS]
    listed = ", ".join(names)
    parser.add_argument("--only", nargs="+", default=names, metavar="NAME", choices=names, help=listed)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the results here, as Markdown")
    parser.add_argument("--folder", type=Path, help="of the installations (default: a temporary one)")
    args = parser.parse_args(argv)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary).resolve()
        try:
            with served(Path(temporary)) as url:
                for client in CLIENTS:
                    if client.name in args.only:
                        results.append(attempt(client, folder / client.name, url))
                        made = results[-1]
                        print(f"{made.client.package} {made.version}: {', '.join(made.passed)}", flush=True)
                        print(
                            *(f"  {name}: {fault}\n" for name, fault in made.faults.items()), sep="", end=""
                        )
        except InputError as error:
            print(one_line(str(error)), file=sys.stderr)
            return 2
    if args.page:
        args.page.write_text(page(results))
    return int(any(each.faults for each in results))


if __name__ == "__main__":
    sys.exit(main())
