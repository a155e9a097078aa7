"""Threads that compute the graphs of contexts on the CPU."""

from __future__ import annotations

from spac import _core, env
from spac.machine.topology import Cpu, placing, read_cpus
from spac.model.c_api import Context

POLL = 1
"""ggml's polling level where only the CPU computes: threads look for the next graph for a few milliseconds.
They do not sleep while a token is sampled, and they leave the cores soon after the last one."""


def place(threads: int) -> list[Cpu]:
    """Choose the CPUs of so many threads, for pools made from now on, and return all CPUs."""
    cpus = read_cpus()
    _core.set_placing(*placing(cpus, threads, env.PIN_THREADS.get()))
    return cpus


class SharedPool:
    """One pool for contexts that compute in turns, made for the first of them.

    Without it, ggml makes and ends its threads for every graph. Target and draft share it: the threads of a
    second pool would still look for work while those of the first compute. It has as many threads as the
    largest of a context's two numbers, for tokens and for prompts; graphs use as many as they want of these.
    """

    def __init__(self, *, cpu_alone: bool) -> None:
        """Prepare. Beside a device, whose part of the work has threads of its own, idle threads sleep."""
        self._poll = POLL if cpu_alone else 0
        self._pool: _core.ThreadPool | None = None

    def attach(self, context: Context) -> None:
        """Have a context compute with the pool. The pool must be closed after it."""
        if self._pool is None:
            self._pool = _core.ThreadPool(context.threads, self._poll)
        self._pool.attach(context.address)

    def close(self) -> None:
        """End the threads, once the contexts are freed. Calling it again does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
