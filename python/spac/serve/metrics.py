"""The server's metrics for Prometheus."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from spac.engine import Engine
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
    (Counter, "tokens", "Number of tokens by kind: prefilled, generated, drafted, accepted.", "kind"),
    (Counter, "steps", "Number of steps, each a draft and its verification."),
    (Counter, "seconds", "Seconds by kind: prefill, decode, draft, verify, sample, …", "kind"),
    (Counter, "activations", "Number of activations (token, expert) of decode steps.", "place"),
    (Counter, "moved_bytes", "Bytes moved by kind: uploads, downloads, joins.", "kind"),
)  # fmt: skip
"""The kind, the name, the meaning and the labels of each metric. The names begin with `spac_`."""


TOKENS = ("prefilled", "generated", "drafted", "accepted")


def _work_of(stats: RunStats) -> dict[tuple[str, ...], float]:
    """Return the counts of a run's work, by a counter's name and its label."""
    hits = round((stats.hit_rate or 0) * stats.activations)
    kinds = ("prefill", "decode", "draft", "verify", "sample", "host_wait", "host_compute")
    return {
        ("steps",): stats.steps,
        ("activations", "device"): hits, ("activations", "host"): stats.activations - hits,
        **{("tokens", kind): getattr(stats, f"{kind}_tokens") for kind in TOKENS},
        **{("seconds", kind): getattr(stats, f"{kind}_s") for kind in kinds},
        **{("moved_bytes", kind): size for kind, size in stats.bytes_moved.items()},
    }  # fmt: skip


class Metrics:
    """Holds counters since the server started, in its own registry."""

    def __init__(self, queue: RequestQueue, engine: Engine) -> None:
        """Make the metrics of an engine that serves, whose requests wait in `queue`."""
        self._engine = engine
        self._registry = CollectorRegistry()
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

    def _count(self) -> None:
        """Count what the engine did since the last look."""
        stats = self._engine.batch_stats
        with self._lock:
            before = self._counted
            # A step that ends between the readings of two counts must not make one smaller.
            self._counted = {name: max(n, before.get(name, 0)) for name, n in _work_of(stats).items()}
            for (name, *labels), value in self._counted.items():
                counter = self._of[name]
                counter = counter.labels(*labels) if labels else counter
                counter.inc(value - before.get((name, *labels), 0))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self._count()
        return bytes(generate_latest(self._registry))
