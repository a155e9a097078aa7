"""The table of the engines that are compared, and the commands of peers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.job import Job
from bench.processes import PeerError

NAMES = ("target", "draft", "draft_length", "n_cpu_moe", "ctx", "threads", "port")
"""Names in braces that are replaced in a peer's command."""
_NAMED = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Engine:
    """A row of the table. With `tuned`, as many layers' experts are on the device as fit into the VRAM that
    spac took (llama.cpp's --n-cpu-moe)."""

    name: str
    kind: str
    speculates: bool = False
    tuned: bool = False
    scheduler: str = ""
    governor: bool = False
    draft_length: int | None = None  # None: the comparison's draft length
    lookahead: int | None = None  # None: spac's default
    no_host: bool = False  # llama.cpp's repacked kernels for the CPU; beside a GPU they are off otherwise
    command: str = ""  # a peer's command, with its {names}

    @property
    def side(self) -> str:
        """Return the key that the number of threads is chosen for: one side's engines share it, each peer has
        its own."""
        return f"peer {self.name}" if self.command else self.kind

    @property
    def by_budget(self) -> bool:
        """Return True if the budget of experts on the device makes a difference to it."""
        return self.kind == "spac" or self.tuned

    @property
    def has_threads(self) -> bool:
        """Return True if its number of threads can be chosen."""
        return not self.command or uses(self.command, "threads")


def engines(schedulers: Sequence[str], peers: Sequence[Engine] = ()) -> list[Engine]:
    """Return all rows in the order in which they run: those that decide first, each after the row that it is
    tuned to. The comparison rests on the first scheduler."""
    first, *others = schedulers

    def spac(what: str, scheduler: str = first, **more: object) -> Engine:
        return Engine(f"spac {scheduler}{what}", "spac", scheduler=scheduler, **more)

    def llama(what: str, **more: object) -> Engine:
        return Engine(f"llama.cpp{what}", "llama.cpp", **more)

    drafts = [spac(", draft", name, speculates=True) for name in others]
    return [
        spac(", draft", speculates=True),
        llama(", experts on CPU, draft", speculates=True),
        llama(" --n-cpu-moe, draft", speculates=True, tuned=True),
        spac(", governor", speculates=True, governor=True),
        llama(", experts on CPU"),
        llama(" --n-cpu-moe", tuned=True),
        *peers,
        *(spac(", governor", name, speculates=True, governor=True) for name in others[:1]),
        *drafts[:1],
        # Fewer drafted tokens need fewer experts: llama.cpp's own default length.
        llama(" --n-cpu-moe, draft of 3", speculates=True, tuned=True, draft_length=3),
        llama(" --n-cpu-moe --no-host, draft", speculates=True, tuned=True, no_host=True),
        llama(" --n-cpu-moe --no-host", tuned=True, no_host=True),
        spac(", no draft"),
        # A twin's routers are easier to predict than a real model's (tools/twin).
        spac(" without lookahead, draft", speculates=True, lookahead=0),
        spac(" without lookahead, no draft", lookahead=0),
        *drafts[1:],
    ]


def peer(text: str) -> Engine:
    """Return the row of NAME=COMMAND. Its properties follow from the names that the command uses.

    Raise PeerError with one line.
    """
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
    name += ", draft" if "draft" in used else ""
    return Engine(name, "peer", "draft" in used, tuned="n_cpu_moe" in used, command=command)


def uses(command: str, name: str) -> bool:
    """Return True if the name is replaced in the command."""
    return f"{{{name}}}" in command


def words(job: Job, port: int) -> list[str]:
    """Return a peer's command line. Values are filled in after the splitting, so that spaces in them split
    nothing."""
    values = {
        "target": job.target, "draft": job.draft or "", "draft_length": job.draft_length,
        "n_cpu_moe": job.n_cpu_moe or 0, "ctx": job.ctx, "threads": job.threads, "port": port,
    }  # fmt: skip
    return [_NAMED.sub(lambda found: str(values[found[1]]), word) for word in shlex.split(job.command)]
