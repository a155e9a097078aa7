"""The live feed: what the engine does now, for everyone who watches.

The decoding thread adds up its steps and hands over a snapshot at most `RATE` times a second. The event
loop's thread turns it into text. Without a watcher, the engine has no listener of the feed, and steps cost
nothing more.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spac.machine.arrays import BoolArray, Int32Array

if TYPE_CHECKING:
    import spac._core as _core
    from spac.engine import Engine

RATE = 5
"""The most snapshots in a second."""
MOST_WAITING = 8
"""The most snapshots that wait for a slow watcher."""
SETTLE_S = 0.5
"""The seconds between two looks at copies that go on after the last step."""
RESIDENT, USED, MOVED = 1, 2, 4
"""The flags of an expert: in a slot, used in the last step, copied or evicted since the snapshot before."""


def slot_row(slot: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a slot's answer."""
    times, total = slot["timings"], slot["n_prompt_tokens_total"]
    return {
        "id": slot["id_task"],
        "prompt": total,
        "pending": max(0, total - times["cache_n"] - times["prompt_n"]),
        "tokens": times["predicted_n"],
        "seconds": round(times["predicted_ms"] / 1e3, 3),
        "drafted": times.get("draft_n", 0),
        "accepted": times.get("draft_n_accepted", 0),
    }


@dataclass
class Sums:
    """The sums over the steps since the snapshot before."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    activations: int = 0
    hits: int = 0

    def add(self, step: _core.Step, seconds: float) -> None:
        """Add one step."""
        self.steps += 1
        self.tokens += len(step.tokens)
        self.drafted += step.n_drafted
        self.accepted += step.n_accepted
        self.seconds += seconds
        if len(costs := step.layer_costs):
            hits = int(costs["device_activations"].sum())
            self.hits += hits
            self.activations += hits + int(costs["host_activations"].sum())


class LiveFeed:
    """Publishes snapshots of an engine to watchers."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
        answers: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        """Make the feed of an engine that serves.

        `clock` returns seconds, and `answers` the figures of the answers that run and wait, on the event
        loop's thread. It is None where one answer is made at a time.
        """
        self._engine, self._clock, self._answers = engine, clock, answers
        self._order, self._asking = asyncio.Lock(), set[asyncio.Task[None]]()
        self._watchers: set[asyncio.Queue[str]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._phase = "idle"
        self._n_running, self._lock = 0, threading.Lock()
        self._sums, self._since, self._due = Sums(), 0.0, 0.0
        self._residency: Int32Array | None = None
        self._used: BoolArray | None = None

    # The decoding thread

    def begin(self) -> None:
        """Note that a request begins; its prompt comes first."""
        with self._lock:
            self._n_running += 1
            if self._n_running > 1:  # The others' steps tell the phase.
                return
            self._phase, self._since = "prompt", 0.0
        if self._watchers:
            self._hand_over()

    def end(self) -> None:
        """Note that the request's generation has ended."""
        with self._lock:
            self._n_running -= 1
            if self._n_running > 0:
                return
            self._phase = "idle"
        if self._watchers:
            self._hand_over()

    def _observe(self, step: _core.Step) -> None:
        now = self._clock()
        with self._lock:
            if self._n_running:  # The loop may make a step more after a client has left.
                self._phase = "decoding"
        measured = (step.draft_ns + step.verify_ns + step.sample_ns) * 1e-9
        self._sums.add(step, now - self._since if self._since else measured)
        self._since = now
        if now >= self._due:
            self._due = now + 1 / RATE
            self._hand_over(step.demand > 0)

    def _hand_over(self, used: BoolArray | None = None) -> None:
        sums, self._sums = self._sums, Sums()
        with contextlib.suppress(RuntimeError):  # the loop ends before its threads when the server stops
            self._loop.call_soon_threadsafe(self._publish, self._phase, sums, self._look(), used)

    # The event loop's thread

    def _look(self) -> Int32Array | None:
        experts = self._engine.experts
        return experts.residency() if experts is not None and experts.n_layer else None

    async def watch(self) -> AsyncIterator[dict[str, str]]:
        """Yield events: "about" with the model's shape, then "step" with each snapshot.

        A slow watcher misses snapshots.
        """
        self._loop, waiting = asyncio.get_running_loop(), asyncio.Queue[str](MOST_WAITING)
        if not self._watchers:
            self._listen(True)
        self._watchers.add(waiting)
        try:
            yield {"event": "about", "data": json.dumps(self._about())}
            self._publish(self._phase, Sums(), self._look(), None)
            while True:
                yield {"event": "step", "data": await waiting.get()}
        finally:
            self._watchers.discard(waiting)
            if not self._watchers:
                self._listen(False)

    def _listen(self, listens: bool) -> None:
        engine = self._engine
        # The list is replaced as a whole, because the decoding thread may be reading it.
        others = [each for each in engine.events.after_step if each != self._observe]
        engine.events.after_step = [*others, self._observe] if listens else others
        self._sums, self._since, self._due = Sums(), 0.0, 0.0
        self._residency = self._used = None

    def _about(self) -> dict[str, Any]:
        experts = self._engine.experts
        names = [each.name for each in experts.devices] if experts is not None else []
        layers = experts.layers if experts is not None else []
        return {
            "devices": [names[layer.device] for layer in layers] if len(names) > 1 else [],
            "experts": [layer.n_expert for layer in layers],
            "slots": experts.slots.n_slots if experts is not None else 0,
            "drafts": self._engine.governor is not None,
            "several": self._answers is not None,
        }

    def _settle(self) -> None:
        """Publish the residency again, because copies end after the last step."""
        if self._watchers and self._phase == "idle":
            self._publish("idle", Sums(), self._look(), None)

    def _publish(self, phase: str, sums: Sums, residency: Int32Array | None, used: BoolArray | None) -> None:
        if self._answers is None:
            self._send({}, phase, sums, residency, used)
        else:
            task = asyncio.create_task(self._ask(self._answers, phase, sums, residency, used))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, answers: Callable[[], Awaitable[dict[str, Any]]], *snapshot: Any) -> None:
        async with self._order:  # it keeps the order of snapshots
            self._send(await answers(), *snapshot)

    def _send(
        self,
        batch: dict[str, Any],
        phase: str,
        sums: Sums,
        residency: Int32Array | None,
        used: BoolArray | None,
    ) -> None:
        about: dict[str, Any] = {"phase": phase, **asdict(sums), **batch}
        if residency is not None:
            about["resident"] = int(np.count_nonzero(residency >= 0))
            flags = self._flags(residency, used)
            about["experts"] = base64.b64encode(flags.tobytes()).decode()
            if phase == "idle" and (flags & MOVED).any():
                self._loop.call_later(SETTLE_S, self._settle)
        text = json.dumps(about, separators=(",", ":"))
        for waiting in self._watchers:
            if not waiting.full():
                waiting.put_nowait(text)

    def _flags(self, residency: Int32Array, used: BoolArray | None) -> Any:
        """Return the flags of every expert, uint8 [L, N]."""
        resident = residency >= 0
        before = self._residency >= 0 if self._residency is not None else resident
        self._residency = residency
        if used is not None and used.shape == resident.shape:
            self._used = used
        last = self._used if self._used is not None else np.zeros_like(resident)
        return (resident * RESIDENT + last * USED + (before != resident) * MOVED).astype(np.uint8)
