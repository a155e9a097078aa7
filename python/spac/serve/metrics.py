"""The server's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from spac.engine.prompt_progress import Reading
    from spac.serve.request_queue import RequestQueue
    from spac.stats import RunStats

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Holds counters since the server started and gauges of the last request's rates, in its own registry."""

    def __init__(self, queue: RequestQueue) -> None:
        self._registry = CollectorRegistry()
        self.reading: Callable[[], Reading | None] = lambda: None
        """The function that returns the progress of the prompt that is being read."""
        self._set_up_requests(queue)
        self._set_up_prompt()
        self._set_up_generation()

    def _set_up_requests(self, queue: RequestQueue) -> None:
        self.requests = self._make(
            Counter,
            "requests",
            "Number of requests by path and status. 499 means that the client left.",
            ("path", "status"),
        )
        self.seconds = self._make(
            Histogram, "request_seconds", "Seconds from a request to the end of its answer.", buckets=SECONDS
        )
        self.queued = self._make(
            Histogram, "queue_seconds", "Seconds that a request waited in the queue.", buckets=SECONDS
        )
        self._make(Gauge, "queue_length", "Number of requests that wait for their turn.").set_function(
            lambda: queue.n_waiting
        )
        self._make(Gauge, "queue_limit", "Largest number of requests that may wait.").set(queue.limit)
        self._make(Gauge, "running", "Number of requests that are served at this moment.").set_function(
            lambda: int(queue.busy)
        )

    def _set_up_prompt(self) -> None:
        def gauge(name: str, text: str, value: Callable[[Reading], float | None]) -> None:
            self._make(Gauge, name, text).set_function(
                lambda: (value(reading) or 0.0) if (reading := self.reading()) is not None else 0.0
            )

        gauge(
            "prompt_length_tokens",
            "Tokens of the prompt that is being read; 0 if none is.",
            lambda at: at.total,
        )
        gauge("prompt_done_tokens", "Tokens of this prompt that are read, as estimated.", lambda at: at.done)
        gauge("prompt_left_seconds", "Seconds until it is read, as estimated.", lambda at: at.left_s)

    def _set_up_generation(self) -> None:
        self._speed = self._make(
            Gauge, "tokens_per_second", "Tokens per second of the last request's decoding."
        )
        self._acceptance = self._make(
            Gauge, "acceptance", "Share of drafted tokens that the last request accepted."
        )
        self._hit_rate = self._make(
            Gauge, "hit_rate", "Share of the last request's activations that the device computed."
        )
        self._tokens = self._make(
            Counter,
            "tokens",
            "Number of tokens by kind: prompt, prefilled, generated, drafted, accepted.",
            ("kind",),
        )
        self._steps = self._make(Counter, "steps", "Number of steps, each a draft and its verification.")
        self._time = self._make(
            Counter, "seconds", "Seconds by kind: prefill, decode, draft, verify, sample, …", ("kind",)
        )
        self._activations = self._make(
            Counter, "activations", "Number of activations (token, expert) of decode steps.", ("place",)
        )
        self._bytes = self._make(
            Counter, "moved_bytes", "Bytes moved by kind: uploads, downloads, joins.", ("kind",)
        )
        self._uploads = self._make(Counter, "uploads", "Number of experts that were put into slots.")
        self._evictions = self._make(Counter, "evictions", "Number of experts that were evicted from slots.")
        self._waits = self._make(Counter, "host_waits", "Number of times that the CPU waited for the device.")

    def _make(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        return kind(f"spac_{name}", text, labels, registry=self._registry, **more)

    def observe(self, stats: RunStats) -> None:
        """Count one generation, finished or stopped; any thread may call this."""
        for gauge, rate in (
            (self._speed, stats.tokens_per_second),
            (self._acceptance, stats.acceptance),
            (self._hit_rate, stats.hit_rate),
        ):
            if rate is not None:
                gauge.set(rate)
        for kind in ("prompt", "prefilled", "generated", "drafted", "accepted"):
            self._tokens.labels(kind).inc(getattr(stats, f"{kind}_tokens"))
        for kind in ("prefill", "decode", "draft", "verify", "sample", "host_wait", "host_compute"):
            self._time.labels(kind).inc(getattr(stats, f"{kind}_s"))
        hits = round((stats.hit_rate or 0) * stats.activations)
        self._activations.labels("device").inc(hits)
        self._activations.labels("host").inc(stats.activations - hits)
        for kind, size in stats.bytes_moved.items():
            self._bytes.labels(kind).inc(size)
        self._steps.inc(stats.steps)
        self._uploads.inc(stats.uploads)
        self._evictions.inc(stats.evictions)
        self._waits.inc(stats.host_waits)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
