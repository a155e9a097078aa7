"""Measure what the choice of graphs is worth for prompts: `python -m bench.prompt_stream`.

A small random model with many experts runs on the simulated device, with a link of a given speed and
limited memory. Each prompt is evaluated in three ways: split between device and CPU in graphs of 512 tokens,
streamed in graphs of 512 tokens, and as the engine chooses (`--ubatch auto --stream-batch auto`). One engine
evaluates all prompts of a link. It reads each of them by its own choice a few times and learns. Then the
ways run by turns. The better of the old ways runs twice in each turn, which shows the noise: the ratio of a
way to itself. "same way" is the share of the repeats in which the engine chose the better old way for every
piece, so that it did the same. Times are medians, and ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from bench.provenance import about
from spac import _core
from spac.config import EngineConfig
from spac.config.values import StreamBatch
from spac.engine import Engine
from spac.engine.prompt_times import Way

SIZES = (128, 512, 1024, 2048, 4096, 8192, 16384)
LINKS = (2.0, 8.0, 25.0)
WAYS: dict[str, Way | None] = {"split": Way(False, 512), "512": Way(True, 512), "chosen": None}
LEARNING = 4
"""Prompts of each length that the engine reads by its own choice at first."""
LIMIT, SLOTS = "700M", "50%"


def model_of(folder: Path) -> Path:
    """Write a model of 3 layers of 512 experts, 110 KB each in Q4_K. The rest of it computes little."""
    from tools.models import Shape, write_model

    shape = Shape(
        n_embd=256, n_head=2, n_head_kv=1, n_ff_exp=256, n_expert=512, n_used=1, types={"*_exps": "Q4_K"}
    )
    return write_model(folder / "model.gguf", "qwen3moe", shape)


class Prompts:
    """Evaluates prompts with one engine, in any of the ways."""

    def __init__(self, engine: Engine) -> None:
        """Take over the session's choice of graphs. Its own choice learns nothing from other ways."""
        experts, graphs = engine.experts, engine.graphs
        assert experts is not None
        assert graphs is not None
        self._engine, self._experts, self._graphs = engine, experts, graphs
        self._session = engine.session_with(temp=0.0)
        self._way: Way | None = None
        self._graph_tokens: list[int] = []
        self.chosen: list[Way] = []
        """The ways of the last prompt's pieces."""
        self._session.on("prompt_graph", self._choose)
        self._session.on("prompt_piece", self._observe)

    def read(self, n_tokens: int, way: Way | None) -> dict[str, float]:
        """Return the figures of one prompt: seconds, bytes over the link, and tokens of the largest graph.

        None stands for the engine's choice.
        """
        self._session.reset()
        self._engine.prepare_prompt()
        self._way, self._graph_tokens, self.chosen = way, [], []
        before, started = self._experts.stats["stream_bytes"], perf_counter()
        self._session.prefill((np.arange(n_tokens + 1) * 7 % 253).astype(np.int32))
        seconds = perf_counter() - started
        return {
            "prompt_s": seconds,
            "link_bytes": self._experts.stats["stream_bytes"] - before,
            "graph_tokens": max(self._graph_tokens),
        }

    def text(self, n_steps: int) -> tuple[int, ...]:
        """Return the greedy tokens that follow the last prompt."""
        return tuple(int(token) for _ in range(n_steps) for token in self._session.step().tokens)

    def _choose(self, n_pending: int, n_failed: int) -> int:
        way = self._way
        if way is None:
            size = self._graphs.choose(n_pending, n_failed)
            self.chosen.append(self._graphs.way)
        else:
            self._experts.set_stream_tokens(StreamBatch.LEAST if way.streams else 0)
            self._experts.set_stream_divides(way.divides)
            size = way.size
        self._graph_tokens.append(min(n_pending, size))
        return size

    def _observe(self, n_tokens: int, n_past: int, ns: int) -> None:
        if self._way is None:
            self._graphs.observe(n_tokens, n_past, ns)


def compare(prompts: Prompts, n_tokens: int, link: float, seconds: float, first_s: float) -> dict[str, Any]:
    """Compare the ways at one length, for about `seconds`. `first_s` is the time of the first prompt."""
    runs: list[dict[str, dict[str, float]]] = []
    choices: list[list[Way]] = []
    itself: list[tuple[float, float]] = []
    started = perf_counter()
    while len(runs) < 3 or (perf_counter() - started < seconds and len(runs) < 15):
        order = list(WAYS) if len(runs) % 2 else list(WAYS)[::-1]
        runs.append({})
        for name in order:
            runs[-1][name] = prompts.read(n_tokens, WAYS[name])
            if WAYS[name] is None:
                choices.append(prompts.chosen)
        better = min(("split", "512"), key=lambda name: median(run[name]["prompt_s"] for run in runs))
        again = prompts.read(n_tokens, WAYS[better])["prompt_s"]
        itself.append((runs[-1][better]["prompt_s"], again))
    found = {way: {name: median(run[way][name] for run in runs) for name in runs[0][way]} for way in WAYS}
    chosen, times = found["chosen"], [run["chosen"]["prompt_s"] for run in runs]
    better = min(("split", "512"), key=lambda name: found[name]["prompt_s"])
    better_s, old = found[better]["prompt_s"], WAYS[better]
    assert old is not None
    same = [all(way.kind == old.kind and way.size <= old.size for way in ways) for ways in choices]
    return {
        "n_tokens": n_tokens,
        "link_gb_s": link,
        "repeats": len(runs),
        "graph_tokens": chosen["graph_tokens"],
        "bytes_per_token": {way: figures["link_bytes"] / n_tokens for way, figures in found.items()},
        "time_ratio_to_split": chosen["prompt_s"] / found["split"]["prompt_s"],
        "time_ratio_to_512": chosen["prompt_s"] / found["512"]["prompt_s"],
        "time_ratio_to_better": chosen["prompt_s"] / better_s,
        "time_ratio_range": [min(times) / better_s, max(times) / better_s],
        "better_to_itself": median(again for _, again in itself) / median(first for first, _ in itself),
        "first_prompt_ratio_to_better": first_s / better_s,
        "same_way": sum(same) / len(same),
        "ways": found,
    }


def measure(model: Path, link: float, sizes: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of each length at one speed of the link."""
    config = EngineConfig(
        target=model, device="simulated", threads=1, ctx=max(SIZES) + 256, slots=SLOTS, vram_limit=LIMIT,
        stream_batch="auto", scheduler="static", governor="fixed", state="off",
    )  # fmt: skip
    with Engine(config) as engine:
        assert engine.experts is not None
        _core.set_simulated_device(upload_gb_s=link)
        try:
            engine.experts.settle(30.0)
            prompts = Prompts(engine)
            first = {size: prompts.read(size, None)["prompt_s"] for size in sizes}
            for size in [*sizes] * (LEARNING - 1):
                prompts.read(size, None)
            for size in sizes:
                yield compare(prompts, size, link, seconds, first[size])
        finally:
            _core.set_simulated_device()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--links", type=float, nargs="+", default=LINKS, help="GB/s of the device's link")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tokens of the prompts")
    parser.add_argument("--seconds", type=float, default=10, help="time of each point, 3 repeats at least")
    parser.add_argument(
        "--out", type=Path, help="where to write the figures, as JSON; other links' rows stay"
    )
    given = parser.parse_args(arguments)
    rows = []
    print(
        "link GB/s  tokens  graphs of  repeats  time to split  to 512  to the better  to itself  "
        "first prompt  same way"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(Path(folder))
        for link in given.links:
            for row in measure(model, link, given.sizes, given.seconds):
                rows.append(row)
                print(
                    f"{link:9g}  {row['n_tokens']:6d}  {row['graph_tokens']:9.0f}  {row['repeats']:7d}  "
                    f"{row['time_ratio_to_split']:13.3f}  {row['time_ratio_to_512']:6.3f}  "
                    f"{row['time_ratio_to_better']:13.3f}  {row['better_to_itself']:9.3f}  "
                    f"{row['first_prompt_ratio_to_better']:12.3f}  {row['same_way']:8.2f}",
                    flush=True,
                )
    figures = {**about("bench.prompt_stream", arguments), "memory_limit": LIMIT, "slots": SLOTS}
    if given.out is not None:
        others = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
        rows = [row for row in others if row["link_gb_s"] not in given.links] + rows
        given.out.write_text(json.dumps({**figures, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
