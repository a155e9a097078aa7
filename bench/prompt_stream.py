"""Measure what large graphs save for a streamed prompt: `python -m bench.prompt_stream`.

A small random model with many experts runs on the simulated device, with a link of a given speed and
limited memory. Each prompt is evaluated in three ways: split between device and CPU in graphs of 512 tokens,
streamed in graphs of 512 tokens (`--ubatch 512`), and streamed in graphs of chosen sizes (`--ubatch auto`).
The ways run by turns. Each run has an engine of its own, whose second prompt is measured. Times are medians,
and ratios are those of the chosen sizes to the other ways.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.provenance import commit, processor
from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine

SIZES = (128, 512, 1024, 2048, 4096, 8192, 16384)
LINKS = (2.0, 8.0, 25.0)
WAYS: dict[str, dict[str, Any]] = {
    "split": {"ubatch": 512, "stream_batch": 0},
    "512": {"ubatch": 512, "stream_batch": 64},
    "auto": {"ubatch": "auto", "stream_batch": 64},
}
LIMIT, SLOTS = "700M", "50%"


def model_of(folder: Path) -> Path:
    """Write a model of 3 layers of 512 experts, 110 KB each in Q4_K. The rest of it computes little."""
    from tools.models import Shape, write_model

    shape = Shape(
        n_embd=256, n_head=2, n_head_kv=1, n_ff_exp=256, n_expert=512, n_used=1, types={"*_exps": "Q4_K"}
    )
    return write_model(folder / "model.gguf", "qwen3moe", shape)


def measure(model: Path, way: str, n_tokens: int, link: float) -> dict[str, float]:
    """Return the figures of one prompt: seconds, bytes over the link and tokens of the largest graph."""
    config = EngineConfig(
        target=model, device="simulated", threads=1, ctx=max(SIZES) + 256, slots=SLOTS, vram_limit=LIMIT,
        scheduler="static", governor="fixed", state="off",
        sampling=SamplingConfig(temp=0.0, ignore_eos=True), **WAYS[way],
    )  # fmt: skip
    prompt = (np.arange(n_tokens + 1) * 7 % 253).astype(np.int32)
    with Engine(config) as engine:
        assert engine.experts is not None
        _core.set_simulated_device(upload_gb_s=link)
        engine.experts.settle(30.0)
        for _ in range(2):  # the first one prepares graphs
            if engine.session is not None:
                engine.session.reset()
            before, generation = dict(engine.experts.stats), engine.generate(prompt, 1)
            for _piece in generation:
                pass
            after, stats = engine.experts.stats, generation.stats
        memory = next(device.memory for device in _core.devices() if device.name == "simulated")
        figures = {
            "link_bytes": after["stream_bytes"] - before["stream_bytes"],
            "prompt_s": stats.prefill_s,
            "first_token_s": stats.time_to_first_token_s or 0.0,
            "peak_bytes": memory.peak,
        }
    _core.set_simulated_device()
    return figures


def compare(model: Path, n_tokens: int, link: float, repeats: int) -> dict[str, Any]:
    """Compare the ways at one length and one speed of the link."""
    runs = [{way: measure(model, way, n_tokens, link) for way in WAYS} for _ in range(repeats)]
    names = runs[0]["auto"]
    found = {way: {name: median(run[way][name] for run in runs) for name in names} for way in WAYS}
    auto, old = found["auto"], found["512"]

    def ratios(name: str, *ways: str) -> float:
        return median(run["auto"][name] / min(run[way][name] for way in ways) for run in runs)

    return {
        "n_tokens": n_tokens,
        "link_gb_s": link,
        "bytes_per_token": {way: figures["link_bytes"] / n_tokens for way, figures in found.items()},
        "bytes_ratio": auto["link_bytes"] / old["link_bytes"],
        "time_ratio_to_512": ratios("prompt_s", "512"),
        "time_ratio_to_better": ratios("prompt_s", "split", "512"),
        "first_token_ratio_to_512": ratios("first_token_s", "512"),
        "peak_ratio_to_512": auto["peak_bytes"] / old["peak_bytes"],
        "ways": found,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--links", type=float, nargs="+", default=LINKS, help="GB/s of the device's link")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tokens of the prompts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    given = parser.parse_args(arguments)
    rows = []
    print(
        "link GB/s  tokens  bytes/token 512 → auto       ratio  time to 512  to the better  first token  peak"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(Path(folder))
        for link in given.links:
            for size in given.sizes:
                row = compare(model, size, link, given.repeats)
                rows.append(row)
                per = row["bytes_per_token"]
                print(
                    f"{link:9g}  {size:6d}  {per['512']:10.0f} → {per['auto']:10.0f}  "
                    f"{row['bytes_ratio']:9.4f}  "
                    f"{row['time_ratio_to_512']:11.3f}  {row['time_ratio_to_better']:13.3f}  "
                    f"{row['first_token_ratio_to_512']:11.3f}  {row['peak_ratio_to_512']:4.2f}",
                    flush=True,
                )
    about = {
        "command": shlex.join(["python", "-m", "bench.prompt_stream", *(arguments or sys.argv[1:])]),
        "commit": commit(),
        "processor": processor(),
        "memory_limit": LIMIT,
        "slots": SLOTS,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
