"""Measure short prompts on both sides at once: `python -m bench.short_prompts`.

A small random model runs on the simulated device, with links of several speeds. Each prompt is one graph and
is evaluated in four ways: split (the CPU computes all missing experts), streamed (all experts come to the
device), divided (the CPU computes some missing experts while the others come to the device), and as the
engine chooses. The engine reads each length by its own choice at first, and so it learns. Then the ways run
by turns. Times are medians. The greedy text after each prompt is compared with that of the split.

The simulated device computes on the CPU's cores, so a division gains less there than on a GPU. `--predict`
computes instead what a layer takes by the costs of a desktop (`ExpertCosts.guessed`: a CPU with 30 GB/s of
memory, a GPU with 600 GB/s) that has 128 experts of 2.65 MB, 8 for each token, a quarter of them resident.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.prompt_stream import Prompts
from bench.provenance import about
from spac import _core
from spac.config import EngineConfig
from spac.costs.model import ExpertCosts
from spac.engine import Engine
from spac.engine.prompt_times import Way

SIZES = (32, 64, 128, 256, 512, 1024)
LINKS = (2.0, 8.0, 25.0)
WAYS = ("split", "streamed", "divided", "chosen")
LEARNING = 8
"""Prompts of each length that the engine reads by its own choice at first."""
REPEATS = 11
SLOTS = "25%"


def model_of(folder: Path) -> Path:
    """Write a model of 3 layers of 48 experts, 4 for each token, 885 KB each in Q4_K."""
    from tools.models import Shape, write_model

    shape = Shape(
        n_layer=3, n_embd=1024, n_head=4, n_head_kv=1, n_ff_exp=512, n_expert=48, n_used=4,
        types={"*_exps": "Q4_K"},
    )  # fmt: skip
    return write_model(folder / "model.gguf", "qwen3moe", shape)


def way_of(name: str, n_tokens: int) -> Way | None:
    """Return a way by its name; None for the engine's choice."""
    size = min(512, n_tokens)
    return None if name == "chosen" else Way(name != "split", size, divides=name == "divided")


def compare(prompts: Prompts, n_tokens: int, link: float) -> dict[str, Any]:
    """Compare the ways at one length."""
    runs: list[dict[str, dict[str, float]]] = []
    texts: dict[str, set[tuple[int, ...]]] = {name: set() for name in WAYS}
    for i in range(REPEATS):
        order = WAYS if i % 2 else WAYS[::-1]
        runs.append({})
        for name in order:
            runs[-1][name] = prompts.read(n_tokens, way_of(name, n_tokens))
            texts[name].add(prompts.text(8))
    seconds = {name: median(run[name]["prompt_s"] for run in runs) for name in WAYS}
    better = min(seconds["split"], seconds["streamed"])
    ratios = [
        run["chosen"]["prompt_s"] / min(run["split"]["prompt_s"], run["streamed"]["prompt_s"]) for run in runs
    ]
    return {
        "n_tokens": n_tokens,
        "link_gb_s": link,
        "seconds": seconds,
        "link_bytes": {name: median(run[name]["link_bytes"] for run in runs) for name in WAYS},
        "divided_to_better": seconds["divided"] / better,
        "chosen_to_better": seconds["chosen"] / better,
        "chosen_range": [min(ratios), max(ratios)],
        "same_text": all(texts[name] == texts["split"] and len(texts[name]) == 1 for name in WAYS),
    }


def measure(model: Path, link: float, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each length at one speed of the link."""
    config = EngineConfig(
        target=model, device="simulated", threads=1, ctx=max(SIZES) + 256, slots=SLOTS, ubatch="auto",
        stream_batch="auto", scheduler="static", governor="fixed", state="off",
    )  # fmt: skip
    with Engine(config) as engine:
        assert engine.experts is not None
        _core.set_simulated_device(upload_gb_s=link)
        try:
            engine.experts.settle(30.0)
            prompts = Prompts(engine)
            for size in [*sizes] * LEARNING:
                prompts.read(size, None)
            for size in sizes:
                yield compare(prompts, size, link)
        finally:
            _core.set_simulated_device()


def predict(n_tokens: int, link: float) -> dict[str, float]:
    """Return the milliseconds of a layer for each way; the rows of experts are drawn uniformly."""
    n_expert, n_used, n_bytes = 128, 8, 2_650_000
    unit = ExpertCosts.guessed(n_bytes)
    n_resident = n_expert // 4
    costs = (
        0.0,
        unit.cpu_expert_s * 1e9,
        unit.cpu_pair_s * 1e9,
        0.0,
        n_bytes / link,
        unit.device_expert_s * 1e9,
    )
    rng = np.random.default_rng(0)
    drawn = rng.permuted(np.tile(np.arange(n_expert), (n_tokens, 1)), axis=1)[:, :n_used]
    rows = np.bincount(drawn.ravel(), minlength=n_expert)
    missing = sorted(rows[n_resident:][rows[n_resident:] > 0].tolist(), reverse=True)
    used = int((rows[:n_resident] > 0).sum())
    _, cpu, device = _core.MissBalance().divide(costs, missing, used)
    cpu_alone = costs[1] * len(missing) + costs[2] * sum(missing)
    stream = max(costs[4] * (n_expert - n_resident), costs[5] * n_expert)
    return {
        "split": 1e-6 * max(cpu_alone, costs[5] * used),
        "streamed": 1e-6 * stream,
        "divided": 1e-6 * max(cpu, device),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--links", type=float, nargs="+", default=LINKS, help="GB/s of the device's link")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tokens of the prompts")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--predict", action="store_true", help="print predictions, and measure nothing")
    given = parser.parse_args(arguments)
    if given.predict:
        print("link GB/s  tokens  split ms  streamed  divided  divided/better (predicted, one layer)")
        for link in given.links:
            for n_tokens in given.sizes:
                found = predict(n_tokens, link)
                times = "  ".join(f"{found[name]:8.2f}" for name in WAYS[:3])
                ratio = found["divided"] / min(found["split"], found["streamed"])
                print(f"{link:9g}  {n_tokens:6d}  {times}  {ratio:14.3f}")
        return
    rows = []
    print(
        "link GB/s  tokens  split ms  streamed   divided    chosen  divided/better  chosen/better  same text"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(Path(folder))
        for link in given.links:
            for row in measure(model, link, given.sizes):
                rows.append(row)
                times = "  ".join(f"{1e3 * row['seconds'][name]:8.2f}" for name in WAYS)
                least, most = row["chosen_range"]
                print(
                    f"{link:9g}  {row['n_tokens']:6d}  {times}  {row['divided_to_better']:14.3f}  "
                    f"{row['chosen_to_better']:6.3f} ({least:.3f}-{most:.3f})  {row['same_text']}",
                    flush=True,
                )
    figures = {**about("bench.short_prompts", arguments), "slots": SLOTS}
    if given.out is not None:
        given.out.write_text(json.dumps({**figures, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
