"""The server's metrics for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from spac.engine.batch_recording import StepMeter
    from spac.engine.prompt_progress import Reading
    from spac.serve.request_queue import RequestQueue
    from spac.stats import RunStats

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


def _work_of(stats: RunStats) -> dict[tuple[str, ...], float]:
    """Return the counts of a run's work, by a counter's name and its label."""
    hits = round((stats.hit_rate or 0) * stats.activations)
    kinds = ("prefill", "decode", "draft", "verify", "sample", "host_wait", "host_compute")
    return {
        ("steps",): stats.steps, ("uploads",): stats.uploads, ("evictions",): stats.evictions,
        ("waits",): stats.host_waits, ("activations", "device"): hits,
        ("activations", "host"): stats.activations - hits,
        **{("time", kind): getattr(stats, f"{kind}_s") for kind in kinds},
        **{("bytes", kind): size for kind, size in stats.bytes_moved.items()},
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
        self._set_up_requests(queue)
        self._set_up_prompt()
        self._set_up_generation()
        self._set_up_batch()

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
            lambda: queue.n_served
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

    def _set_up_batch(self) -> None:
        self._running = self._make(Gauge, "batch_sequences", "Number of generations in the batch.")
        self._waiting = self._make(
            Gauge, "batch_sequences_waiting", "Number of generations that wait for a place in the batch."
        )
        self._mean = self._make(
            Gauge, "batch_step_tokens", "Mean number of tokens that a step of the batch makes."
        )

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
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._mean.set_function(lambda: steps.meter.step_tokens / max(1, steps.meter.steps))

    def _count_work(self, work: Mapping[tuple[str, ...], float]) -> None:
        for (name, *labels), value in work.items():
            counter = getattr(self, f"_{name}")
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
