"""Measure clients at once over HTTP, beside llama.cpp's own server: `python -m bench.parallel_servers`.

For each number of clients N, the systems run with -np N: spac on the CPU (`cpu`), spac on the simulated
device (`simulated`), spac on `--device` (`device`), and llama-server of the pinned source on the CPU
(`llama-server`), which `python -m tools.llama_server` builds. `default` is spac on the CPU with the places
and the least context that it has without -np. `--draft` gives spac's systems a draft model. All have the same
threads, the others the same context, and sample greedily. A client asks for one streamed completion after
another, each with a prompt of its own, which begins differently from all others. The systems are measured in
turns, in rounds, while the other servers idle. A first round is left out, because it warms up.

A row has medians over the rounds: tokens per second of all clients together, also as a ratio to
llama-server's in the same round (without it, to the first system's), with its range, and the time to
the first token at the 95th percentile of the requests. --out writes the page, and its figures as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.compare.client import Client
from bench.compare.server import PeerError, Server, free_port
from bench.program import about, publish, run_program, where
from spac import demo
from spac.errors import InputError
from tools.llama_server import PROGRAM

PEER = "llama-server"
SYSTEMS = ("cpu", "default", "simulated", "device", PEER)
LOAD_S = 300  # seconds for a server to load its model
COUNTS = (1, 2, 4, 8, 16)
TEXT = "the sea was grey and a man walked along its edge counting boats that came home late "


@dataclass(frozen=True)
class Figures:
    """Holds what the clients saw of one system in one round."""

    tokens_per_s: float
    first_token_s: list[float]
    """The seconds until each request's first text."""

    @property
    def late_s(self) -> float:
        """The 95th percentile of the times to the first token."""
        return float(np.percentile(self.first_token_s, 95))


def prompt(number: int, words: int) -> str:
    """Return a prompt of so many words, of which no other number's has the beginning."""
    text = (TEXT * (words // 8 + 2)).split()[number % 17 :]
    return f"{number} " + " ".join(text[:words])


async def ask(port: int, text: str, n_tokens: int) -> tuple[int, float]:
    """Return the tokens of one streamed completion, and the seconds until its first text.

    Raise PeerError where the server refuses.
    """
    body = {
        "model": "m", "prompt": text, "max_tokens": n_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "cache_prompt": False, "top_k": 1,
    }  # fmt: skip
    data = json.dumps(body).encode()
    begun, first = time.perf_counter(), 0.0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    status = await reader.readline()
    last = b""
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        if not first and json.loads(line[6:])["choices"][0]["text"]:
            first = time.perf_counter() - begun
        if b'"completion_tokens"' in line:
            last = line
    writer.close()
    if b" 200 " not in status or not last:
        raise PeerError(f"a request failed: {status.decode(errors='replace').strip()}")
    return int(json.loads(last[6:])["usage"]["completion_tokens"]), first


async def clients(port: int, n: int, args: argparse.Namespace, seed: int) -> Figures:
    """Return what `n` clients see that begin together and make `args.requests` requests each."""

    async def one(number: int) -> list[tuple[int, float]]:
        numbers = range(seed + number * args.requests, seed + (number + 1) * args.requests)
        return [await ask(port, prompt(each, args.words), args.tokens) for each in numbers]

    begun = time.perf_counter()
    found = [each for rows in await asyncio.gather(*map(one, range(n))) for each in rows]
    seconds = time.perf_counter() - begun
    return Figures(sum(tokens for tokens, _ in found) / seconds, [first for _, first in found])


def words_of(system: str, n: int, port: int, args: argparse.Namespace) -> list[str]:
    """Return the command of a server for `n` clients."""
    context = n * (args.context or 2 * args.words + args.tokens + 64)
    shared = ["--port", str(port), "-t", str(args.threads)]
    if system == "default":
        system, context = "cpu", max(context, 4096)
    else:
        shared += ["-np", str(n)]
    shared += ["-c", str(context)]
    if system == PEER:
        shared += ["-m", str(args.target), "-tb", str(args.threads), "-cram", "0", "-ngl", "0", "--no-warmup"]
        return [str(args.peer), *shared]
    shared += ["--target", str(args.target), "-tb", str(args.threads), "--cache-ram", "0", "--no-page"]
    shared += ["--device", args.device if system == "device" else system, "--state", "off", "--quiet"]
    shared += ["--slots", args.slots] if args.slots else []
    shared += ["--draft", args.draft] if args.draft else []
    return [sys.executable, "-m", "spac", "serve", *shared]


def measured(n: int, args: argparse.Namespace) -> list[dict[str, Figures]]:
    """Return the figures of every round by system, for `n` clients."""
    ports = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for system in args.systems:
            ports[system] = free_port()
            words = words_of(system, n, ports[system], args)
            server = stack.enter_context(Server(words, folder / f"{system}.log"))
            Client(server, ports[system], time.monotonic() + LOAD_S).wait()
        rounds = []
        for at in range(args.rounds + 1):
            turn = args.systems[at % len(args.systems) :] + args.systems[: at % len(args.systems)]
            seed = 1000 * at
            rounds.append({each: asyncio.run(clients(ports[each], n, args, seed)) for each in turn})
        return rounds[1:]


def table(found: dict[int, list[dict[str, Figures]]]) -> str:
    """Return the medians over the rounds as a Markdown table, by the number of clients."""
    systems = [each for each in SYSTEMS if each in next(iter(found.values()))[0]]
    base = next((each for each in (PEER, *SYSTEMS) if each in systems), systems[0])
    lines = ["| clients | system | tokens/s | ratio (range) | first token, p95 | ratio |", "| --- " * 6 + "|"]
    for n, rounds in found.items():
        for system in systems:
            speed = statistics.median(each[system].tokens_per_s for each in rounds)
            late = statistics.median(each[system].late_s for each in rounds)
            ratios = [each[system].tokens_per_s / each[base].tokens_per_s for each in rounds]
            faster = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
            later = f"{statistics.median(each[system].late_s / each[base].late_s for each in rounds):.2f}"
            lines.append(f"| {n} | {system} | {speed:.1f} | {faster} | {late:.2f} s | {later} |")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> None:
    if PEER in args.systems and not args.peer.is_file():
        raise InputError(f"{args.peer} is missing: `python -m tools.llama_server` builds it")
    try:
        found = {n: measured(n, args) for n in args.counts}
    except PeerError as error:
        raise InputError(str(error)) from None
    figures = about("bench.parallel_servers")
    text = f"`{figures['command']}`, {args.rounds} rounds. {where()}\n\n{table(found)}"
    rows = {n: [{k: asdict(v) for k, v in each.items()} for each in rounds] for n, rounds in found.items()}
    publish(text, args.out, "# Clients at once, beside llama.cpp's server", {**figures, "clients": rows})


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", help="a draft model for spac's systems")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["cpu", "simulated", PEER])
    parser.add_argument("--device", default="CUDA0", help="of the system `device`")
    parser.add_argument("--slots", help="of spac's systems, as `spac serve` takes it")
    parser.add_argument("--peer", type=Path, default=PROGRAM, help="llama-server (default: the built one)")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), metavar="N")
    parser.add_argument("--requests", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--words", type=int, default=48, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--context", type=int, help="of each client, for a model with more tokens than words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return run_program(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
