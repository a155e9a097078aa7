"""The pool of threads that compute the graphs of contexts on the CPU."""

from __future__ import annotations

from spac import _core
from spac.machine.topology import Cpu, placing, read_cpus
from spac.model.c_api import Context

POLL = 1
"""ggml's polling level if only the CPU computes: threads poll for the next graph for a few milliseconds.

They stay awake while a token is sampled, and they free the cores soon after the last token.
"""


def place(threads: int) -> list[Cpu]:
    """Choose the CPUs for this number of threads in pools that are made later, and return all CPUs."""
    cpus = read_cpus()
    _core.set_placing(placing(cpus, threads))
    return cpus


class SharedPool:
    """A pool of threads for contexts that compute in turns. It is made for the first of them.

    Without it, ggml makes and ends its threads for every graph. Target and draft share it, because the
    threads of a second pool would still poll while those of the first compute. The first context has two
    numbers of threads, for tokens and for prompts. The pool has the larger one, and a graph uses the threads
    that it needs.
    """

    def __init__(self, *, cpu_alone: bool) -> None:
        """Choose the polling: beside a device, idle threads sleep, because the device has its own threads."""
        self._poll = POLL if cpu_alone else 0
        self._pool: _core.ThreadPool | None = None

    def attach(self, context: Context) -> None:
        """Make a context compute with the pool. The context must be closed before the pool."""
        if self._pool is None:
            self._pool = _core.ThreadPool(context.threads, self._poll)
        self._pool.attach(context.pointer)

    def close(self) -> None:
        """End the threads, after the contexts are freed. Calling it again does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
