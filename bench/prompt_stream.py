"""Measure what a streamed prompt saves by copies on the device: `python -m bench.prompt_stream`.

A small random model runs on the simulated device with a slow link. The time is the link's, as on a GPU whose
computing hides behind the copies. Prompts of 512 tokens with a share of the experts resident run beside
prompts with none resident. The latter copy as much as every prompt did before. Bytes must fall by exactly the
residents' share. The time must fall by as much, less the time of the copies on the device and of computing.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine

SHARES = (0.17, 0.25, 0.5)
N_TOKENS = 512
Figures = dict[str, float]


def model_of(folder: Path) -> Path:
    """Write a model of 7 layers of 36 experts, 110 KB each in Q4_K."""
    from tools.models import Shape, write_model

    path = folder / "model.gguf"
    shape = Shape(n_layer=7, n_embd=256, n_head=8, n_ff_exp=256, n_expert=36, n_used=2, types={"*": "Q4_K"})
    write_model(str(path), "qwen3moe", shape)
    return path


def place(experts: _core.Experts, share: float) -> None:
    """Make slots for `share` of every layer's experts, and fill them with experts drawn at random."""
    random = np.random.default_rng(1)
    wanted = np.zeros((experts.n_layer, experts.n_expert), np.int32)
    for row in wanted:
        row[random.permutation(row.size)[: round(share * row.size)]] = 1
    experts.attach_slots(int(wanted.sum()))
    experts.submit(wanted, np.ones(experts.n_layer, np.int32))
    if not experts.settle(60.0):
        raise RuntimeError("the slots did not fill within a minute")


def prompt(engine: Engine, share: float) -> Figures:
    """Return one prompt's seconds and bytes, with `share` of the experts resident."""
    assert engine.experts is not None
    experts, session = engine.experts, engine.session_with(temp=0.0)
    place(experts, share)
    session.reset()
    before, started = dict(experts.stats), time.perf_counter()
    session.prefill(np.arange(N_TOKENS + 1, dtype=np.int32) % 256)
    seconds, after = time.perf_counter() - started, experts.stats
    moved = {name: after[name] - before[name] for name in ("stream_bytes", "stream_slot_bytes")}
    return {"s": seconds, "link_bytes": moved["stream_bytes"], "device_bytes": moved["stream_slot_bytes"]}


def compare(engine: Engine, share: float, repeats: int) -> dict[str, Any]:
    """Compare `share` of the experts resident with none resident, in turns."""
    pairs = [(prompt(engine, 0.0), prompt(engine, share)) for _ in range(repeats)]
    ratios = np.array([with_slots["s"] / without["s"] for without, with_slots in pairs])
    without, with_slots = pairs[-1]
    assert with_slots["link_bytes"] + with_slots["device_bytes"] == without["link_bytes"]
    return {
        "resident": with_slots["device_bytes"] / without["link_bytes"],
        "link_bytes": with_slots["link_bytes"],
        "link_bytes_ratio": with_slots["link_bytes"] / without["link_bytes"],
        "time_ratio": float(np.median(ratios)),
        "time_ratio_range": [float(ratios.min()), float(ratios.max())],
        "seconds_with_none": float(np.median([pair[0]["s"] for pair in pairs])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--link", type=float, default=0.02, help="GB/s of the simulated device's link")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            target=model_of(Path(folder)), device="simulated", threads=1, ctx=1024, scheduler="none",
            stream_batch=64, state="off", sampling=SamplingConfig(temp=0.0),
        )  # fmt: skip
        with Engine(config) as engine:
            _core.set_simulated_device(upload_gb_s=given.link)
            prompt(engine, 0.0)  # warm-up
            rows = [compare(engine, share, given.repeats) for share in SHARES]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = {
        "command": " ".join(["python -m bench.prompt_stream", *sys.argv[1:]]),
        "machine": platform.machine(),
        "commit": commit,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(about | {"link_gb_s": given.link, "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['resident']:.1%} resident: {row['link_bytes_ratio']:.4f} of the bytes over the link, "
            f"{row['time_ratio']:.3f} of the time"
        )


if __name__ == "__main__":
    main()
