"""Measure what the split costs beyond expert work: `python -m bench.overhead [--model FILE] [--rounds N]`.

It answers three questions on the simulated device, side by side in one process:

1. How much time of its own does the split take on the decoding thread, per MoE layer? It is all of the
   graph's time without the wrapped device's calls, the experts on the CPU and the waits for ids.
2. How long is a decode step with no, a quarter and all experts resident, as a ratio to the CPU alone with the
   same kernels and threads? Steps of the two are taken in turn, a block of each at a time, and compared by
   pairs.
3. How long does a prompt of 512 tokens take, as the same ratio?

Results are medians with 95 % bootstrap intervals. The simulated device computes on a thread of its own, so
the last two also hand every launch to that thread. Here the thread looks for work for up to a millisecond
before it sleeps, as a GPU that has work does. With a part of the experts resident, two threads compute where
the CPU alone has one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.env import SIMULATED_DEVICE
from spac.model.pair import ModelPair

Steps = Callable[[int], float]
BLOCK = 32  # steps of one of the two at a time: enough to fill the caches and wake its own threads


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return the median and its 95 % bootstrap interval."""
    random = np.random.default_rng(seed)
    medians = np.median(random.choice(values, (2000, values.size)), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(np.median(values)), float(low), float(high)


class Stepper:
    """One model on one device that decodes single tokens."""

    def __init__(self, model: Path, device: str, share: float, threads: int) -> None:
        config = EngineConfig(target=model, device=device, threads=threads, ctx=2048, draft_length=0)
        self.pair = ModelPair(config, None)
        if self.pair.experts is not None and share > 0:
            self._make_resident(self.pair.experts, share)
        self.session = _core.Session(
            self.pair.target_context.pointer, None, self.pair.experts, draft_types=[], draft_max=0, temp=0.0,
            ignore_eos=True,
        )  # fmt: skip
        self.start()

    @staticmethod
    def _make_resident(experts: _core.Experts, share: float) -> None:
        counts = [layer.n_expert for layer in experts.layers]
        experts.attach_slots(round(share * sum(counts)))
        priority = np.zeros((experts.n_layer, experts.n_expert), np.int32)
        for row, n in zip(priority, counts, strict=True):
            row[: round(share * n)] = 1
        experts.submit(priority, np.ones(experts.n_layer, np.int32))
        if not experts.settle(60.0):
            raise RuntimeError("the slots did not fill within a minute")

    def start(self) -> None:
        self.session.prefill(np.arange(16, dtype=np.int32))
        self.session.step()

    def steps(self, n: int) -> float:
        """Return the seconds per step over `n` steps. The text starts anew before the context is full."""
        if self.session.n_past + n + 2 > 1024:
            self.start()
        started = time.perf_counter()
        for _ in range(n):
            self.session.step()
        return (time.perf_counter() - started) / n

    def block(self) -> float:
        """Return the seconds per step over a block of steps, always of the same context: attention grows with
        it."""
        self.start()
        return self.steps(BLOCK)

    def prompt(self) -> float:
        """Return the seconds that a prompt of 512 tokens takes."""
        self.session.reset()
        started = time.perf_counter()
        self.session.prefill(np.arange(513, dtype=np.int32) % 256)
        seconds = time.perf_counter() - started
        self.start()
        return seconds

    def own_us_per_block(self, n: int) -> float:
        """Return the split's own µs per MoE block over `n` steps."""
        experts = self.pair.experts
        assert experts is not None
        before = dict(experts.stats)
        self.steps(n)
        spent = {name: value - before[name] for name, value in experts.stats.items()}
        own = spent["graph_ns"] - spent["queue_ns"] - spent["host_compute_ns"] - spent["host_wait_ns"]
        return own / spent["blocks"] / 1e3

    def close(self) -> None:
        self.session.close()
        self.pair.close()


def random_model(folder: Path) -> Path:
    """Write eight layers in the shape of Qwen3-30B-A3B's, with 16 experts each, of random weights."""
    from tools.models import Shape, write_model

    path = folder / "overhead.gguf"
    shape = Shape(n_layer=8, n_expert=16, n_used=8, n_embd=2048, n_head=16, n_ff_exp=768, types={"*": "Q8_0"})
    write_model(path, "qwen3moe", shape)
    return path


def measure(model: Path, rounds: int, threads: int) -> dict[str, object]:
    """Return all figures: times in µs, ratios without unit, each (median, low, high)."""
    result: dict[str, object] = {}
    os.environ[SIMULATED_DEVICE.name] = "spin_us=1000"
    plain = Stepper(model, "cpu", 0.0, threads)
    try:
        for share in (0.0, 0.25, 1.0):
            ours = Stepper(model, "simulated", share, threads)
            try:
                own = [ours.own_us_per_block(8) for _ in range(rounds)]
                pairs = np.array([(ours.block(), plain.block()) for _ in range(rounds)])
                prompts = np.array([(ours.prompt(), plain.prompt()) for _ in range(max(rounds // 2, 1))])
            finally:
                ours.close()
            name = f"{share:.0%} resident"
            result[name] = {
                "own_us_per_block": interval(np.array(own)),
                "step_us": interval(pairs[:, 0] * 1e6),
                "plain_step_us": interval(pairs[:, 1] * 1e6),
                "ratio": interval(pairs[:, 0] / pairs[:, 1]),
                "prompt_ms": interval(prompts[:, 0] * 1e3),
                "plain_prompt_ms": interval(prompts[:, 1] * 1e3),
                "prompt_ratio": interval(prompts[:, 0] / prompts[:, 1]),
            }
    finally:
        plain.close()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--model", type=Path, help="a GGUF with experts (default: one of random weights)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.model or random_model(Path(folder)), args.rounds, args.threads)
    for name, values in figures.items():
        assert isinstance(values, dict)
        for what, (median, low, high) in values.items():
            print(f"{name:14} {what:18} {median:10.3f}  [{low:.3f}, {high:.3f}]")
    if args.json:
        about = {"command": " ".join(["python -m bench.overhead", *sys.argv[1:]]),
                 "machine": platform.processor() or platform.machine(),
                 "cores": os.cpu_count(), "threads": args.threads, "figures": figures}  # fmt: skip
        args.json.write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
