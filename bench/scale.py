"""Predict tokens per second on one card, several cards, and several machines; this is not a measurement.

    python -m bench.scale [--results FILE] [--out FILE]

Models have the sizes of their published configurations, machines those of `bench.step_time.machine`. The time
of experts on one card comes from the simulations of `python -m bench.step_time`: the share of the time that
the CPU alone would take, by the share of experts that have slots (`Replays`). All else is arithmetic, and
stands in this file. One stream, no draft, `CONTEXT` tokens. docs/scale.md has the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.program import write_page
from bench.provenance import commit
from bench.step_time.machine import GB, MACHINES, Machine

RESULTS = Path(__file__).parent / "results" / "step-time.json"
CONTEXT = 8192
KEPT_FREE = 1.5 * GB
"""Device memory for graphs and the device's own use."""
VRAM = {"rtx3060": 12 * GB, "rtx4090": 24 * GB, "h200": 141 * GB}
HOSTS = (64, 128, 256, 512, 1024)
"""Sizes of host memory in GB. A part of `HOST_FREE` has to stay free."""
HOST_FREE = 8
BITS, SMALL_BITS, MXFP4 = 4.85, 4.77, 4.25
"""Bits of a weight in a Q4_K_M file: mean of all, and of experts; and of gpt-oss' experts."""
LINKS = {"1 Gbit/s": (0.118 * GB, 100e-6), "10 Gbit/s": (1.18 * GB, 50e-6), "100 Gbit/s": (11.8 * GB, 10e-6)}
"""Networks: bytes per second, and seconds of a small message there and back."""
TRIPS = 4
"""Messages of ggml's RPC for one graph: inputs, the command to compute, the output, and one of reserve."""


@dataclass(frozen=True)
class Model:
    """A model's sizes, as its published configuration has them."""

    name: str
    layers: int
    width: int
    experts: int
    used: int
    expert_width: int
    attention: int
    """Parameters of a layer's attention."""
    kv: int
    """Numbers that a layer keeps for a token."""
    vocabulary: int
    dense_layers: int = 0
    dense_width: int = 0
    shared_width: int = 0
    expert_bits: float = SMALL_BITS
    bits: float = BITS

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def expert_bytes(self) -> float:
        return 3 * self.width * self.expert_width * self.expert_bits / 8

    @property
    def all_experts(self) -> float:
        return self.expert_bytes * self.experts * self.moe_layers

    @property
    def dense_bytes(self) -> float:
        """Bytes that each token reads on the device beside experts. Routers have 32 bits."""
        blocks = self.layers * self.attention + 3 * self.width * (
            self.dense_layers * self.dense_width + self.moe_layers * self.shared_width
        )
        return (
            blocks + self.vocabulary * self.width
        ) * self.bits / 8 + self.moe_layers * self.width * self.experts * 4

    @property
    def kv_bytes(self) -> float:
        return 2.0 * self.kv * self.layers * CONTEXT

    @property
    def file_bytes(self) -> float:
        return self.all_experts + self.dense_bytes + self.vocabulary * self.width * self.bits / 8


def grouped(width: int, heads: int, kv_heads: int, head: int) -> tuple[int, int]:
    """Return the parameters of grouped-query attention, and the numbers that it keeps for a token."""
    return 2 * width * heads * head + 2 * width * kv_heads * head, 2 * kv_heads * head


def latent(
    width: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, value: int
) -> tuple[int, int]:
    """Return the same of multi-head latent attention."""
    q = width * q_rank + q_rank * heads * (nope + rope)
    return q + width * (kv_rank + rope) + kv_rank * heads * (
        nope + value
    ) + heads * value * width, kv_rank + rope


MODELS = (
    Model("Qwen3-30B-A3B", 48, 2048, 128, 8, 768, *grouped(2048, 32, 4, 128), 151936),
    Model("GLM-4.5-Air", 46, 4096, 128, 8, 1408, *grouped(4096, 96, 8, 128), 151552, 1, 10944, 1408),
    Model(
        "gpt-oss-120b", 36, 2880, 128, 4, 2880, *grouped(2880, 64, 8, 64), 201088, expert_bits=MXFP4, bits=8.5
    ),
    Model("Qwen3-235B-A22B", 94, 4096, 128, 8, 1536, *grouped(4096, 64, 4, 128), 151936),
    Model(
        "DeepSeek-V3",
        61,
        7168,
        256,
        8,
        2048,
        *latent(7168, 128, 1536, 512, 128, 64, 128),
        129280,
        3,
        18432,
        2048,
    ),
)


class Replays:
    """What simulations say of experts on one machine, by the share of experts that have slots."""

    def __init__(self, rows: list[dict], machine: str, routes: str) -> None:
        """Take the rows without a draft, of one kind of recorded routes, under `logistic`."""
        found = [
            (row["n_slots"] / (48 * 128), row["logistic"]) for row in rows
            if (row["machine"], row["name"], row["gamma"]) == (machine, routes, 0)
        ]  # fmt: skip
        if not found:
            raise ValueError(
                f"no simulation of {machine} with routes '{routes}': run python -m bench.step_time"
            )
        model = MODELS[0]
        alone = model.moe_layers * model.used * 2_816_000 / MACHINES[machine].cpu
        points = sorted((share, spent["experts_ms"] / 1e3 / alone, spent["hits"]) for share, spent in found)
        whole = MACHINES[machine].cpu / MACHINES[machine].device
        self._share, self._time, self.hit = np.array(
            [(0.0, 1 + MACHINES[machine].pair_share, 0.0), *points, (1.0, whole, 1.0)]
        ).T

    def left(self, share: float) -> float:
        """Return the experts' seconds at this share of slots, over their reading time on the CPU alone."""
        return float(np.interp(share, self._share, self._time))


@dataclass(frozen=True)
class Box:
    """A machine with cards of one kind, and the simulations of it."""

    machine: Machine
    vram: float
    replays: Replays
    cards: int = 1

    def slots(self, model: Model, layers: float) -> float:
        """Return the share of experts in slots for these layers; negative if the rest does not fit."""
        part = layers / model.layers
        room = self.cards * (self.vram - KEPT_FREE) - part * (model.dense_bytes + model.kv_bytes)
        return min(1.0, room / (part * model.all_experts))

    def layer_s(self, model: Model, share: float) -> float:
        """Return the seconds of one layer for one token."""
        m = self.machine
        launch = (m.dense_s - MODELS[0].dense_bytes / m.device) / MODELS[0].layers
        dense = launch + (model.dense_bytes + model.kv_bytes) / model.layers / m.device
        experts = model.used * model.expert_bytes / m.cpu * self.replays.left(share)
        hand_off = m.hand_off_s if share < 1 else 0.0
        return dense + (experts + hand_off) * model.moe_layers / model.layers

    def token_s(self, model: Model, layers: float | None = None) -> float | None:
        """Return the seconds of a token in the box's layers; None if the dense part does not fit."""
        layers = model.layers if layers is None else layers
        share = self.slots(model, layers)
        return layers * self.layer_s(model, share) if share >= 0 else None


def trip_s(model: Model, link: tuple[float, float]) -> float:
    """Return the seconds that one remote device adds to a token: messages, and activations there and back."""
    return TRIPS * link[1] + 2 * 4 * model.width / link[0]


def with_remote(
    local: Box, remote: Box, model: Model, link: tuple[float, float], n: int = 1
) -> tuple[float, int]:
    """Return the seconds of a token, and the layers on each of n remote devices, at the best number of them.

    A remote device holds whole layers: its memory limits them.
    """
    per_layer = (model.dense_bytes + model.kv_bytes + model.all_experts) / model.layers
    most = min(int((remote.vram - KEPT_FREE) / per_layer), model.layers // (n + 1))
    whole = remote.layer_s(model, 1.0)
    ways = []
    for layers in range(most + 1):
        own = local.token_s(model, model.layers - n * layers)
        if own is not None:
            ways.append((own + (n * (layers * whole + trip_s(model, link)) if layers else 0.0), layers))
    return min(ways, default=(float("inf"), 0))


def with_split(local: Box, remote: Box, model: Model, link: tuple[float, float]) -> tuple[float, int]:
    """Return the seconds of a token, and the layers on a remote machine that splits them, at the best number.

    The remote machine has slots for its layers, and its CPU computes the other experts, as here.
    """
    ways = []
    for layers in range(model.layers):
        own = local.token_s(model, model.layers - layers)
        there = remote.token_s(model, layers) if layers else 0.0
        if own is not None and there is not None:
            ways.append((own + there + (trip_s(model, link) if layers else 0.0), layers))
    return min(ways, default=(float("inf"), 0))


def host_gb(model: Model) -> str:
    return next((f"{size}" for size in HOSTS if size - HOST_FREE >= model.all_experts / GB), "over 1024")


def sizes() -> Iterator[str]:
    yield "| model | file GB | experts GB | one expert MB | dense GB a token | KV GB | host memory GB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for m in MODELS:
        yield (
            f"| {m.name} | {m.file_bytes / GB:.0f} | {m.all_experts / GB:.0f} | {m.expert_bytes / 1e6:.1f} | "
            f"{m.dense_bytes / GB:.1f} | {m.kv_bytes / GB:.1f} | {host_gb(m)} |"
        )


def cards(boxes: dict[tuple[str, str], Box]) -> Iterator[str]:
    counts = (1, 2, 4, 8)
    yield "| model | card | " + " | ".join(f"{n} card{'s' * (n > 1)}" for n in counts) + " |"
    yield "| --- | --- |" + " --- |" * len(counts)
    for m in MODELS:
        for name in VRAM:
            yield f"| {m.name} | {name} | " + " | ".join(_cell(boxes, m, name, n) for n in counts) + " |"


def _cell(boxes: dict[tuple[str, str], Box], model: Model, name: str, n: int) -> str:
    found = []
    for routes in ROUTES:
        box = boxes[name, routes]
        box = Box(box.machine, box.vram, box.replays, n)
        seconds = box.token_s(model)
        if seconds is None:
            return "dense part does not fit"
        found.append(1 / seconds)
    share = box.slots(model, model.layers)
    return (
        f"{found[0]:.0f} ({share:.0%})" if share == 1 else f"{found[1]:.1f} to {found[0]:.1f} ({share:.0%})"
    )


def remotes(
    boxes: dict[tuple[str, str], Box],
    best: Callable[[Box, Box, Model, tuple[float, float]], tuple[float, int]],
) -> Iterator[str]:
    yield "| model | card | alone | " + " | ".join(f"one more over {link}" for link in LINKS) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(LINKS)
    for m in MODELS:
        for name in VRAM:
            box = boxes[name, "published"]
            alone = box.token_s(m)
            cells = []
            for link in LINKS.values():
                seconds, layers = best(box, box, m, link)
                cells.append(
                    f"{1 / seconds:.1f} ({layers} layers)" if seconds < float("inf") else "does not fit"
                )
            yield (
                f"| {m.name} | {name} | {f'{1 / alone:.1f}' if alone else 'does not fit'} | "
                + " | ".join(cells)
                + " |"
            )


def evens(boxes: dict[tuple[str, str], Box]) -> Iterator[str]:
    yield (
        "| model | card | a layer here, µs | a layer there, µs | layers that pay for "
        + " | ".join(LINKS)
        + " |"
    )
    yield "| --- | --- | --- | --- |" + " --- |" * len(LINKS)
    for m in MODELS:
        for name in VRAM:
            box = boxes[name, "published"]
            share = box.slots(m, m.layers)
            if share < 0 or share == 1:
                continue
            here, there = box.layer_s(m, share), box.layer_s(m, 1.0)
            needs = [np.ceil(trip_s(m, link) / (here - there)) for link in LINKS.values()]
            yield (
                f"| {m.name} | {name} | {here * 1e6:.0f} | {there * 1e6:.0f} | "
                + " | ".join(f"{n:.0f}" for n in needs)
                + " |"
            )


ROUTES = ("published", "share 0.00")


def page(results: Path) -> str:
    """Return the tables."""
    rows = json.loads(results.read_text())["rows"]
    boxes = {
        (name, routes): Box(MACHINES[name], vram, Replays(rows, name, routes))
        for name, vram in VRAM.items() for routes in ROUTES
    }  # fmt: skip
    more = "Tokens/s with one more machine of the same kind"
    parts = {
        "Sizes": sizes(),
        "Tokens/s in one box (share of experts in slots)": cards(boxes),
        f"{more}, plain layers over ggml's RPC": remotes(boxes, with_remote),
        f"{more}, which splits its layers": remotes(boxes, with_split),
        "Break-even of a remote machine": evens(boxes),
    }
    text = [f"python -m bench.scale, at commit {commit()}: predictions of a model, no measurement"]
    for title, lines in parts.items():
        text += ["", title, "", *lines]
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the simulations")
    parser.add_argument("--out", type=Path)
    parser.set_defaults(action=lambda args: page(args.results))
    return write_page(parser, "bench.scale", argv)


if __name__ == "__main__":
    sys.exit(main())
