"""The server's metrics for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from spac.engine.batch_recording import StepMeter
    from spac.engine.prompt_progress import Reading
    from spac.serve.request_queue import RequestQueue
    from spac.stats import RunStats

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


METRICS: tuple[tuple[Any, ...], ...] = (
    (Counter, "requests", "Number of requests by path and status. 499 means that the client left.",
     "path", "status"),
    (Histogram, "request_seconds", "Seconds from a request to the end of its answer."),
    (Histogram, "queue_seconds", "Seconds that a request waited in the queue."),
    (Gauge, "queue_length", "Number of requests that wait for their turn."),
    (Gauge, "queue_limit", "Largest number of requests that may wait."),
    (Gauge, "running", "Number of requests that are served at this moment."),
    (Gauge, "prompt_length_tokens", "Tokens of the prompt that is being read; 0 if none is."),
    (Gauge, "prompt_done_tokens", "Tokens of this prompt that are read, as estimated."),
    (Gauge, "prompt_left_seconds", "Seconds until it is read, as estimated."),
    (Gauge, "tokens_per_second", "Tokens per second of the last request's decoding."),
    (Gauge, "acceptance", "Share of drafted tokens that the last request accepted."),
    (Gauge, "hit_rate", "Share of the last request's activations that the device computed."),
    (Counter, "tokens", "Number of tokens by kind: prompt, prefilled, generated, drafted, accepted.", "kind"),
    (Counter, "steps", "Number of steps, each a draft and its verification."),
    (Counter, "seconds", "Seconds by kind: prefill, decode, draft, verify, sample, …", "kind"),
    (Counter, "activations", "Number of activations (token, expert) of decode steps.", "place"),
    (Counter, "moved_bytes", "Bytes moved by kind: uploads, downloads, joins.", "kind"),
    (Counter, "uploads", "Number of experts that were put into slots."),
    (Counter, "evictions", "Number of experts that were evicted from slots."),
    (Counter, "host_waits", "Number of times that the CPU waited for the device."),
    (Gauge, "batch_sequences", "Number of generations in the batch."),
    (Gauge, "batch_sequences_waiting", "Number of generations that wait for a place in the batch."),
    (Gauge, "batch_step_tokens", "Mean number of tokens that a step of the batch makes."),
)  # fmt: skip
"""The kind, the name, the meaning and the labels of each metric. The names begin with `spac_`."""


def _work_of(stats: RunStats) -> dict[tuple[str, ...], float]:
    """Return the counts of a run's work, by a counter's name and its label."""
    hits = round((stats.hit_rate or 0) * stats.activations)
    kinds = ("prefill", "decode", "draft", "verify", "sample", "host_wait", "host_compute")
    return {
        ("steps",): stats.steps, ("uploads",): stats.uploads, ("evictions",): stats.evictions,
        ("host_waits",): stats.host_waits, ("activations", "device"): hits,
        ("activations", "host"): stats.activations - hits,
        **{("seconds", kind): getattr(stats, f"{kind}_s") for kind in kinds},
        **{("moved_bytes", kind): size for kind, size in stats.bytes_moved.items()},
    }  # fmt: skip


class Metrics:
    """Holds counters since the server started and gauges of the last request's rates, in its own registry."""

    def __init__(self, queue: RequestQueue) -> None:
        self._registry = CollectorRegistry()
        self.reading: Callable[[], Reading | None] = lambda: None
        """The function that returns the progress of the prompt that is being read."""
        self._batch: Callable[[], RunStats | None] | None = None
        self._counts_tokens = False
        self._counted: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()
        self._of: dict[str, Any] = {}
        for kind, name, text, *labels in METRICS:
            more = {"buckets": SECONDS} if kind is Histogram else {}
            self._of[name] = kind(f"spac_{name}", text, labels, registry=self._registry, **more)
        self.requests = self._of["requests"]
        self.seconds, self.queued = self._of["request_seconds"], self._of["queue_seconds"]
        self._of["queue_length"].set_function(lambda: queue.n_waiting)
        self._of["queue_limit"].set(queue.limit)
        self._of["running"].set_function(lambda: queue.n_served)
        for name, field in (("length_tokens", "total"), ("done_tokens", "done"), ("left_seconds", "left_s")):
            self._of[f"prompt_{name}"].set_function(partial(self._of_prompt, field))

    def _of_prompt(self, field: str) -> float:
        """Return a figure of the prompt that is being read; 0 if none is, or if it is unknown."""
        return getattr(self.reading(), field, None) or 0.0

    def observe(self, stats: RunStats) -> None:
        """Count one generation, finished or stopped; any thread may call this."""
        for name in ("tokens_per_second", "acceptance", "hit_rate"):
            if (rate := getattr(stats, name)) is not None:
                self._of[name].set(rate)
        for kind in ("prompt", "prefilled", "generated", "drafted", "accepted"):
            self._of["tokens"].labels(kind).inc(getattr(stats, f"{kind}_tokens"))
        if self._batch is None:
            self._count_work(_work_of(stats))

    def watch(
        self,
        steps: StepMeter,
        stats: Callable[[], RunStats | None],
        running: Callable[[], float],
        waiting: Callable[[], float],
        *,
        counts_tokens: bool = False,
    ) -> None:
        """Count the work of steps that several requests share, from the statistics of all of them.

        `counts_tokens` is True if `observe` is not called for each answer.
        """
        self._batch, self._counts_tokens = stats, counts_tokens
        self._of["batch_sequences"].set_function(running)
        self._of["batch_sequences_waiting"].set_function(waiting)
        self._of["batch_step_tokens"].set_function(
            lambda: steps.meter.step_tokens / max(1, steps.meter.steps)
        )

    def _count_work(self, work: Mapping[tuple[str, ...], float]) -> None:
        for (name, *labels), value in work.items():
            counter = self._of[name]
            (counter.labels(*labels) if labels else counter).inc(value)

    def _count_batch(self) -> None:
        """Count what all generations did since the last look."""
        if self._batch is None or (stats := self._batch()) is None:
            return
        with self._lock:
            now, before = _work_of(stats), self._counted
            if self._counts_tokens:
                for kind in ("generated", "drafted", "accepted"):
                    now["tokens", kind] = getattr(stats, f"{kind}_tokens")
            # A step that ends between the readings of two counts must not make one smaller.
            self._counted = {name: max(value, before.get(name, 0)) for name, value in now.items()}
            self._count_work({name: value - before.get(name, 0) for name, value in self._counted.items()})

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self._count_batch()
        return bytes(generate_latest(self._registry))
