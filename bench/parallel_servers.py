"""Measure clients at once over HTTP, beside llama.cpp's own server.

For each number of clients N, the systems run with -np N: spac on the CPU (`cpu`), spac on the simulated
device (`simulated`), spac on `--device` (`device`), and llama-server of the pinned source on the CPU
(`llama-server`), which `python -m tools.llama_server` builds. `default` is spac on the CPU with the places
and the least context that it has without -np. `--draft` gives spac's systems a draft model. All have the same
threads, the others the same context, and sample greedily. A client asks for one streamed completion after
another, each with a prompt of its own, which begins differently from all others. The systems are measured in
turns, in rounds, while the other servers idle. A first round is left out, because it warms up.

A row has medians over the rounds: tokens per second of all clients together, also as a ratio to
llama-server's in the same round (without it, to the first system's), with its range, and the time to
the first token at the 95th percentile of the requests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.client import Client
from bench.page import output, publish, spread, table
from bench.processes import PeerError, Server, free_port
from spac import demo
from spac.errors import InputError
from tools.llama_server import PROGRAM

PEER = "llama-server"
SYSTEMS = ("cpu", "default", "simulated", "device", PEER)
LOAD_S = 300  # seconds for a server to load its model
MOST_S = 3600  # seconds for all of a server's answers
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


def ask(client: Client, text: str, n_tokens: int) -> tuple[int, float]:
    """Return the tokens of one streamed completion, and the seconds until its first text.

    Raise PeerError where the server refuses.
    """
    body = {"prompt": text, "max_tokens": n_tokens, "temperature": 0, "top_k": 1, "cache_prompt": False}
    begun = time.perf_counter()
    with client.explained():
        chunks = list(client.stream(body | {"stream_options": {"include_usage": True}}))
    counts = [each.usage["completion_tokens"] for each in chunks if each.usage]
    if not counts:
        raise PeerError("an answer has no usage")
    first = next((each.time for each in chunks if each.text), begun)
    return counts[-1], first - begun


def clients(client: Client, n: int, args: argparse.Namespace, seed: int) -> Figures:
    """Return what `n` clients see that begin together and make `args.requests` requests each."""

    def one(number: int) -> list[tuple[int, float]]:
        numbers = range(seed + number * args.requests, seed + (number + 1) * args.requests)
        return [ask(client, prompt(each, args.words), args.tokens) for each in numbers]

    begun = time.perf_counter()
    with ThreadPoolExecutor(n) as pool:
        found = [each for rows in pool.map(one, range(n)) for each in rows]
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
    asked: dict[str, Client] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for system in args.systems:
            port = free_port()
            server = stack.enter_context(Server(words_of(system, n, port, args), folder / f"{system}.log"))
            Client(server, port, time.monotonic() + LOAD_S).wait()
            asked[system] = Client(server, port, time.monotonic() + MOST_S)
        rounds = []
        for at in range(args.rounds + 1):
            turn = args.systems[at % len(args.systems) :] + args.systems[: at % len(args.systems)]
            rounds.append({each: clients(asked[each], n, args, 1000 * at) for each in turn})
        return rounds[1:]


def rows_of(found: dict[int, list[dict[str, Figures]]]) -> str:
    """Return the medians over the rounds as a Markdown table, by the number of clients."""
    systems = [each for each in SYSTEMS if each in next(iter(found.values()))[0]]
    base = next((each for each in (PEER, *SYSTEMS) if each in systems), systems[0])
    lines = []
    for n, rounds in found.items():
        for system in systems:
            mine, its = [each[system] for each in rounds], [each[base] for each in rounds]
            late = [a.late_s / b.late_s for a, b in zip(mine, its, strict=True)]
            lines.append([
                str(n), system, f"{statistics.median(each.tokens_per_s for each in mine):.1f}",
                spread([a.tokens_per_s / b.tokens_per_s for a, b in zip(mine, its, strict=True)], 2),
                f"{statistics.median(each.late_s for each in mine):.2f} s", f"{statistics.median(late):.2f}",
            ])  # fmt: skip
    return table(("clients", "system", "tokens/s", "ratio (range)", "first token, p95", "ratio"), lines)


def run(args: argparse.Namespace) -> None:
    if PEER in args.systems and not args.peer.is_file():
        raise InputError(f"{args.peer} is missing: `python -m tools.llama_server` builds it")
    found = {n: measured(n, args) for n in args.counts}
    figures = {n: [{k: asdict(v) for k, v in each.items()} for each in rounds] for n, rounds in found.items()}
    publish(args, f"Clients at once, {args.rounds} rounds", rows_of(found), figures)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=Path, default=demo.TARGET)
    add("--draft", help="a draft model for spac's systems")
    add("--systems", nargs="+", choices=SYSTEMS, default=["cpu", "simulated", PEER])
    add("--device", default="CUDA0", help="of the system `device`")
    add("--slots", help="of spac's systems, as `spac serve` takes it")
    add("--peer", type=Path, default=PROGRAM, help="llama-server (default: the built one)")
    add("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="N")
    add("--requests", type=int, default=2, help="requests of each client in a round")
    add("--words", type=int, default=48, help="words of each prompt")
    add("--tokens", type=int, default=48, help="tokens of each answer")
    add("--context", type=int, help="of each client, for a model with more tokens than words")
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=2)
    output(parser)
