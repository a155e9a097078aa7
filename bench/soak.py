"""Look for leaks of several generations at once: `python -m bench.soak requests` or `server`.

`requests` makes short generations in this process, from threads that read them to their end, cancel them, or
drop them unread. `server` starts `spac serve` and sends it requests whose clients read the answer, leave
during it, reset the connection, or leave at once. Both count a process's threads, open files and own memory
(RssAnon) after a first tenth, and again at the end. They fail with a line if threads or files grew, if memory
grew by more than --growth, or if a request got stuck. At the end, `requests` reads a prompt as long as the
context, which works only if no cells of the memory are lost.

--out writes the page, and the figures beside it as JSON.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.program import publish, run_program
from bench.provenance import about, where
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError, SpacError

STUCK_S = 300.0
"""Seconds without a byte after which a stream counts as stuck."""
WORKERS = 8
"""Idle threads that the web framework of a server may keep for the next requests."""
TEXTS = ("def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def", "1, 2, 3,", "Once")


@dataclass(frozen=True)
class Usage:
    """Holds what a process has in use at one moment."""

    n_done: int
    """The requests that ended before."""
    threads: int
    files: int
    own_mb: float
    """The anonymous memory that is resident, in MB."""


def usage(pid: int | str, n_done: int) -> Usage:
    """Return what a process holds; `pid` "self" is this one."""
    folder = Path(f"/proc/{pid}")
    lines = (line.partition(":") for line in (folder / "status").read_text().splitlines())
    own_kb = {name: value for name, _, value in lines}["RssAnon"].split()[0]
    counts = [len(list((folder / name).iterdir())) for name in ("task", "fd")]
    return Usage(n_done, counts[0], counts[1], int(own_kb) / 1e3)


def growth(before: Usage, after: Usage, most_mb: float, most_threads: int = 0) -> list[str]:
    """Return the faults that two looks at a process show, one line each.

    Memory and threads may grow by `most_mb` and `most_threads`.
    """
    faults = [
        f"{name} grew from {first} to {last}"
        for name, first, last, most in (
            ("threads", before.threads, after.threads, most_threads),
            ("open files", before.files, after.files, 0),
        )
        if last > first + most
    ]  # fmt: skip
    if after.own_mb > before.own_mb + most_mb:
        faults.append(f"memory grew from {before.own_mb:.0f} to {after.own_mb:.0f} MB")
    return faults


class Crowd:
    """Threads that make requests until there are no more to make, and count how each ended."""

    def __init__(self, n_threads: int, ask: Callable[[random.Random], str]) -> None:
        """`ask` makes one request with a thread's own random numbers, and returns how it ended."""
        self.endings: Counter[str] = Counter()
        self._ask, self._lock, self._left = ask, threading.Lock(), 0
        self._n = n_threads

    def make(self, n_requests: int, end_s: float = float("inf")) -> None:
        """Make so many requests, none of which begins after `end_s` of the monotonic clock."""
        self._left = n_requests
        threads = [threading.Thread(target=self._run, args=(at, end_s)) for at in range(self._n)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _run(self, seed: int, end_s: float) -> None:
        random_numbers = random.Random(f"{seed} {sum(self.endings.values())}")
        while time.monotonic() < end_s:
            with self._lock:
                if not self._left:
                    return
                self._left -= 1
            ending = self._ask(random_numbers)
            with self._lock:
                self.endings[ending] += 1


# Generations in this process


def ask_engine(engine: Engine, r: random.Random) -> str:
    """Make one short generation that is read, cancelled or dropped, and return how it ended."""
    text = r.choice(TEXTS) * r.randint(1, 3)
    n, fate = r.randint(1, 8), r.choice(("read", "read", "cancel", "cancel early", "drop"))
    generation = engine.generate(text, n, sampling=SamplingConfig(temp=0.0, ignore_eos=True))
    if fate == "cancel early":
        timer = threading.Timer(r.random() * 0.02, generation.cancel)
        timer.start()
        "".join(generation)
        timer.join()
        return fate
    if fate == "read":
        "".join(generation)
        if len(generation.tokens) != n:
            raise SpacError(f"a generation of {n} tokens has {len(generation.tokens)}: {generation.reason}")
        return fate
    next(generation, None)
    if fate == "cancel":
        generation.cancel()
    return fate


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for a condition. Raise SpacError if it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SpacError(f"{what}: not after {seconds:.0f} seconds")
        time.sleep(0.01)


def look(engine: Engine, n_done: int) -> Usage:
    """Return what this process holds once nothing runs, and check that nothing keeps a place."""
    gc.collect()  # Dropped generations leave when they are collected.
    batch = engine.batch
    assert batch is not None
    wait_until(lambda: batch.n_running == batch.n_waiting == 0, "all sequences have left")
    return usage("self", n_done)


def soak_engine(n_requests: int, parallel: int, n_threads: int, ctx: int = 512) -> tuple[list[Usage], Any]:
    """Return looks at this process after each tenth of the requests, and how the requests ended."""
    config = EngineConfig(
        target=demo.TARGET, device="simulated", slots=8, threads=1, ctx=ctx, parallel=parallel, state="off"
    )
    with Engine(config) as engine:
        crowd = Crowd(n_threads, lambda r: ask_engine(engine, r))
        looks = []
        for at in range(10):
            crowd.make(n_requests * (at + 1) // 10 - n_requests * at // 10)
            looks.append(look(engine, sum(crowd.endings.values())))
        tokens = engine.tokenize("a b c d e f g " * ctx)[: ctx - 1]
        engine.generate(tokens, 1).__next__()
        return looks, crowd.endings


# A server


class Client:
    """Sends requests to one server."""

    def __init__(self, address: str, pause_s: float) -> None:
        """`pause_s` is the longest time that a client waits before a request."""
        self._address, self._pause_s = address, pause_s

    def ask(self, r: random.Random) -> str:
        """Make one streamed request, whose client may leave, and return how it ended."""
        time.sleep(r.random() * self._pause_s)
        fate = r.choice(("read", "read", "leave", "reset", "leave at once"))
        connection = http.client.HTTPConnection(self._address, timeout=STUCK_S)
        body = {
            "prompt": r.choice(TEXTS) * r.randint(1, 12), "max_tokens": r.randint(1, 48), "stream": True,
            "temperature": 0.7, "ignore_eos": True,
        }  # fmt: skip
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            if fate == "leave at once":
                return fate
            response = connection.getresponse()
            if response.status == 429:
                response.read()
                time.sleep(min(5.0, float(response.headers["Retry-After"])))
                return "refused (429)"
            if response.status != 200:
                return f"status {response.status}"
            if fate == "read":
                return fate if b"[DONE]" in response.read() else "cut"
            for _ in range(r.randint(1, 4)):
                response.readline()
            if fate == "reset" and connection.sock is not None:
                linger = struct.pack("ii", 1, 0)
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return fate
        except TimeoutError:
            return "stuck"
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()

    def idles(self) -> bool:
        """Return True if the server serves nothing now."""
        connection = http.client.HTTPConnection(self._address, timeout=STUCK_S)
        try:
            connection.request("GET", "/health")
            health = json.loads(connection.getresponse().read())
            return bool(health["running"] == health["queue"] == 0)
        finally:
            connection.close()


def soak_server(
    minutes: float, parallel: int, n_clients: int, pause_s: float, arguments: list[str]
) -> tuple[list[Usage], Any]:
    """Return looks at a server's process after each tenth of the time, and how the requests ended."""
    command = [
        sys.executable, "-m", "spac", "serve", "--port", "0", "--parallel", str(parallel), "--threads", "1",
        "--quiet", *arguments,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url.startswith("http"):
                err.seek(0)
                raise InputError(f"the server did not start: {err.read().strip()}")
            client, looks = Client(url.split("/")[2], pause_s), []
            crowd, started = Crowd(n_clients, client.ask), time.monotonic()
            for at in range(10):
                crowd.make(sys.maxsize, started + minutes * 6 * (at + 1))
                wait_until(client.idles, "the server is idle")
                time.sleep(2)  # Threads of the last requests end.
                looks.append(usage(process.pid, sum(crowd.endings.values())))
                print(looks[-1], dict(crowd.endings), file=sys.stderr, flush=True)
        finally:
            process.terminate()
            code = process.wait(60)
        err.seek(0)
        if code or "Traceback" in (said := err.read()):
            raise SpacError(f"the server ended with code {code}: {said.strip()}")
        return looks, crowd.endings


def table(looks: list[Usage], endings: Any) -> str:
    """Return the looks and the endings as Markdown."""
    lines = ["| requests | threads | open files | own memory, MB |", "| --- " * 4 + "|"]
    lines += [f"| {each.n_done} | {each.threads} | {each.files} | {each.own_mb:.1f} |" for each in looks]
    ends = ", ".join(f"{name} {n}" for name, n in sorted(endings.items()))
    return "\n".join([*lines, "", f"How the requests ended: {ends}."])


def run(args: argparse.Namespace) -> None:
    """Look for leaks as the command line asks. Raise SpacError if there is one."""
    if args.what == "requests":
        looks, endings = soak_engine(args.requests, args.parallel, args.clients)
    else:
        looks, endings = soak_server(args.minutes, args.parallel, args.clients, args.pause, args.serve)
    figures = {**about("bench.soak"), "looks": [asdict(each) for each in looks], "endings": endings}
    text = f"`{figures['command']}` {where()}\n\n{table(looks, endings)}"
    publish(text, args.out, f"# Leaks: {args.what}", figures)
    faults = growth(looks[0], looks[-1], args.growth, WORKERS if args.what == "server" else 0)
    faults += [f"{n} streams: {name}" for name, n in endings.items() if name == "stuck" or name == "cut"]
    if faults:
        raise SpacError("; ".join(faults))


def main() -> int:
    """Look for leaks, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("requests", "server"))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--clients", type=int, default=16, help="threads that make requests")
    parser.add_argument("--pause", type=float, default=0.5, help="longest seconds before a client's request")
    parser.add_argument("--growth", type=float, default=16.0, help="MB that memory may grow by")
    parser.add_argument("--out", type=Path)
    args, args.serve = parser.parse_known_args()
    return run_program(run, args)


if __name__ == "__main__":
    sys.exit(main())
