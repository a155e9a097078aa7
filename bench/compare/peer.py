"""Measure peers: servers of OpenAI's completions, started by the commands of `--peer NAME=COMMAND`."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from bench.compare.client import Client
from bench.compare.job import Job, Result
from bench.compare.server import PeerError, Server, free_port
from bench.compare.vram import VramMeter

ENDING_S = 0.5  # seconds: a server that has failed may be about to end, which explains more
ROUNDS = 3  # runs with each number of threads; their median is the result
NAMES = ("target", "draft", "draft_length", "n_cpu_moe", "ctx", "threads", "port")
"""Names in braces that are replaced in a command."""
_NAMED = re.compile(r"\{(\w+)\}")


def parse(text: str) -> tuple[str, str]:
    """Return the name and the command of NAME=COMMAND. Raise PeerError with one line."""
    name, equals, command = (part.strip() for part in text.partition("="))
    if not (name and equals and command):
        raise PeerError("--peer takes NAME=COMMAND")
    try:
        shlex.split(command)
    except ValueError as error:
        raise PeerError(f"its command cannot be read: {error}") from None
    used = set(_NAMED.findall(command))
    if unknown := sorted(used - set(NAMES)):
        known = ", ".join(f"{{{each}}}" for each in NAMES)
        raise PeerError(f"its command has {{{unknown[0]}}}; what can be filled in is {known}")
    if missing := [each for each in ("target", "port") if each not in used]:
        raise PeerError(f"its command has no {{{missing[0]}}}")
    return name, command


def uses(command: str, name: str) -> bool:
    """Return True if the name is replaced in the command."""
    return f"{{{name}}}" in command


def words(job: Job, port: int) -> list[str]:
    """Return the command line. Values are filled in after the splitting, so that spaces in them split
    nothing."""
    values = {
        "target": job.target, "draft": job.draft or "", "draft_length": job.draft_length,
        "n_cpu_moe": job.n_cpu_moe or 0, "ctx": job.ctx, "threads": job.threads, "port": port,
    }  # fmt: skip
    return [_NAMED.sub(lambda found: str(values[found[1]]), word) for word in shlex.split(job.command)]


def run(job: Job, log: Path, seconds: float) -> Result:
    """Return a peer's results on all prompts or with each number of threads, or the error where it failed."""
    deadline = time.monotonic() + seconds
    try:
        return _sweep(job, log, deadline) if job.kind == "threads" else _measure(job, log, deadline)
    except PeerError as error:
        return Result(error=str(error), threads=job.threads)


@contextmanager
def _started(job: Job, log: Path, deadline: float) -> Iterator[tuple[Server, Client]]:
    """Yield a server that answers, and its client. End the server afterwards.

    Raise PeerError for a server that has ended meanwhile, even if another one answered at its port.
    """
    port = free_port()
    with Server(words(job, port), log) as server:
        client = Client(server, port, deadline)
        try:
            client.wait()
            yield server, client
        except PeerError:
            server.check(ENDING_S)
            raise
        server.check()


def _measure(job: Job, log: Path, deadline: float) -> Result:
    begun = time.monotonic()
    with VramMeter(job.device) as meter, _started(job, log, deadline) as (server, client):
        load_s = time.monotonic() - begun
        prompts = zip(job.prompts, job.texts, strict=True)
        runs = [client.complete(tokens, text, job.n_predict) for tokens, text in prompts]
        peak_ram = server.peak_ram
    return Result(
        runs=[asdict(each) for each in runs], load_s=load_s, peak_ram=peak_ram, peak_vram=meter.used,
        threads=job.threads, notes=list(client.notes),
    )  # fmt: skip


def _sweep(job: Job, log: Path, deadline: float) -> Result:
    """Start the server with each number of threads. The first answer is a warm-up and not in the speeds."""
    speeds = {}
    for n in job.thread_counts:
        with _started(replace(job, threads=n), log, deadline) as (_, client):
            prompt, text = job.prompts[0], job.texts[0]
            found = [client.complete(prompt, text, job.n_predict).decode_speed for _ in range(ROUNDS + 1)]
        speeds[str(n)] = median(found[1:])
    return Result(speeds=speeds)
