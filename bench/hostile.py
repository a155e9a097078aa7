"""Measure clients beside others whose grammars explode.

Eight clients ask for one short completion after another: alone, beside twelve that ask for the same, and
beside twelve with the grammars and schemas of tools/hostile_grammars.py. A row has the median and the longest
time of the eight clients' answers, the longest time over the median alone, the number of the others' answers
by status, and the most memory of the server until then. --parallel 20 gives each client a place of its own;
otherwise answers also wait for a place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from bench.client import Client
from bench.page import output, publish, table
from bench.parallel_servers import LOAD_S, prompt
from bench.processes import PeerError, Server, free_port
from tools.hostile_grammars import GRAMMARS, SCHEMAS

NAMES = ("doubled", "forked", "optional", "a hidden loop", "doubled by each letter", "alternatives")
HOSTILE: list[dict[str, Any]] = [{"grammar": GRAMMARS[name][0]} for name in NAMES]
HOSTILE += [{"json_schema": schema} for schema, _ in [*SCHEMAS.values()][: len(NAMES)]]
KINDS = {"alone": [], "beside 12 more": [{}] * 12, "beside 12 hostile ones": HOSTILE}
NUMBERS = count()


async def ask(port: int, tokens: int, more: dict[str, Any]) -> tuple[int, float]:
    """Return the status of a completion and the seconds that it took."""
    body = {"prompt": prompt(next(NUMBERS), 12), "n_predict": tokens, "ignore_eos": not more, **more}
    data, begun = json.dumps({"temperature": 0, **body}).encode(), time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: ")
    writer.write(str(len(data)).encode() + b"\r\n\r\n" + data)
    try:
        answer = await reader.read()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return int(answer[9:12] or 0), time.perf_counter() - begun


async def measured(
    port: int, args: argparse.Namespace, others: list[dict[str, Any]]
) -> tuple[list[float], Counter[int]]:
    """Return the times of the clients' answers, and the others' statuses. Raise PeerError for a refusal."""
    times, statuses = list[float](), Counter[int]()

    async def client() -> None:
        for _ in range(args.requests):
            status, seconds = await ask(port, args.tokens, {})
            times.append(seconds)
            if status != 200:
                raise PeerError(f"a client got the status {status}")

    async def other(more: dict[str, Any]) -> None:
        while True:
            statuses[(await ask(port, args.tokens, more))[0]] += 1

    tasks = [asyncio.create_task(other(more)) for more in others]
    await asyncio.sleep(1 if others else 0)
    await asyncio.gather(*(client() for _ in range(8)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times, statuses


def run(args: argparse.Namespace) -> None:
    port, usual, found, rows = free_port(), 0.0, dict[str, list[float]](), list[list[str]]()
    words = [sys.executable, "-m", "spac", "serve", "--port", str(port), "--threads", "1", "--no-page"]
    words += ["--parallel", str(args.parallel), "--ctx", "16384", "--state", "off", "--quiet"]
    with tempfile.TemporaryDirectory() as folder, Server(words, Path(folder) / "log") as server:
        Client(server, port, time.monotonic() + LOAD_S).wait()
        asyncio.run(measured(port, args, []))  # warms up
        for name, others in KINDS.items():
            times, statuses = asyncio.run(measured(port, args, others))
            usual, found[name] = usual or statistics.median(times), times
            said = ", ".join(f"{n} with {each}" for each, n in sorted(statuses.items())) or "none"
            row = [f"{statistics.median(times):.2f} s", f"{max(times):.2f} s", f"{max(times) / usual:.2f}"]
            rows.append([name, *row, said, f"{server.peak_ram >> 20} MB"])
    head = ("eight clients", "median", "longest", "ratio", "others' answers", "memory")
    publish(args, "Clients beside hostile grammars", table(head, rows), found)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=6, help="requests of each of the eight clients")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each answer")
    parser.add_argument("--parallel", type=int, default=-1, help="as `spac serve` has it")
    output(parser)
