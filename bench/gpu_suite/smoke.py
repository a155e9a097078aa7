"""The bundled pair on a device and on the CPU: are the logits the same, but for what other kernels round?

    python -m bench.gpu_suite.smoke RESULT.json [--device CUDA0] [--seconds 90] [--longest 40]

Every form of the split runs in a process of its own, so that a crash costs only that form: no experts
resident, some, all; with the ids masks read by the device's kernels and without; with work queued ahead of
the CPU's and without; with layers that look ahead; with a prompt's experts streamed through the device. Exit
code 1: a form crashed, or is further off than `BOUND`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spac.env import DEVICE_MASKS, LAUNCH_AHEAD

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "python" / "spac" / "demo" / "target.gguf"
BATCHES = (96, 9, 9, 4, 2, 1, 1, 1, 1)  # tokens evaluated at a time: a prompt, verifications, single tokens
BOUND = 5e-3
"""Normalized mean square error of the logits: ten times what upstream's tests allow one matrix product."""


@dataclass(frozen=True)
class Form:
    """One way to compute the same."""

    name: str
    slots: str = "0"
    masks: bool = False  # the device's kernels read the ids masks
    ahead: bool = False  # what follows the CPU's part of a layer is queued before the CPU has done it
    lookahead: int = 0  # layers, from which on experts are loaded while a step runs
    stream_batch: int = 0
    on_cpu: bool = False


FORMS = (
    Form("plain, on the CPU", on_cpu=True),
    Form("split, nothing resident"),
    Form("split, 25 %", "25%"),
    Form("split, 25 %, ahead", "25%", ahead=True),
    Form("split, 25 %, masks", "25%", masks=True),
    Form("split, 25 %, masks, ahead", "25%", masks=True, ahead=True),
    Form("split, 25 %, looking ahead", "25%", lookahead=1),
    Form("split, 25 %, masks, ahead, looking ahead", "25%", masks=True, ahead=True, lookahead=1),
    Form("split, all, masks", "100%", masks=True),
    Form("split, 25 %, masks, prompt streamed", "25%", masks=True, stream_batch=32),
)
LONGEST_S = 40.0  # of one form: a device that waits for ever is one of the faults


def compute(form: Form, device: str, threads: int = 0) -> np.ndarray:
    """float32 [tokens, n_vocab]: the logits of every token. threads: 0: one per core."""
    from bench.compare.ours import logits, make_resident
    from spac.config import EngineConfig
    from spac.pair import ModelPair

    config = EngineConfig(
        target=DEMO, device="cpu" if form.on_cpu else device, slots=form.slots, ctx=512, draft_length=0,
        stream_batch=form.stream_batch, threads=threads,
    )  # fmt: skip
    pair = ModelPair(config, None)
    try:
        make_resident(pair, form.slots)
        if pair.experts is not None:
            pair.experts.set_lookahead(form.lookahead)
            pair.experts.set_stream_tokens(form.stream_batch)  # a pair is made without
        tokens = np.random.default_rng(0).integers(0, 1000, sum(BATCHES)).tolist()
        found, at = [], 0
        for n in BATCHES:
            found.append(logits(pair, tokens[at : at + n], at))
            at += n
        return np.concatenate(found)
    finally:
        pair.close()


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Normalized mean square error; infinite where a number is none."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    value = float(np.square(a - b).sum() / np.square(b - b.mean()).sum())
    return value if np.isfinite(value) else float("inf")


def run(form: Form, device: str, to: Path, seconds: float) -> str:
    """Computes a form in a process of its own; returns what went wrong, or nothing."""
    words = [sys.executable, "-m", "bench.gpu_suite.smoke", str(to), "--device", device, "--form", form.name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path, str(ROOT / "python")])}
    environment |= {DEVICE_MASKS.name: str(int(form.masks)), LAUNCH_AHEAD.name: str(int(form.ahead))}
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {seconds:.0f} s"
    if done.returncode == 0 and to.is_file():
        return ""
    return f"status {done.returncode}: {(done.stderr.strip() or 'no output').splitlines()[-1][:300]}"


def check(device: str, seconds: float, longest: float) -> list[dict[str, Any]]:
    """A row for every form: its error against the first, tokens with another likeliest successor, time."""
    deadline, rows = time.monotonic() + seconds, []
    with tempfile.TemporaryDirectory() as folder:
        wanted: np.ndarray | None = None
        for i, form in enumerate(FORMS):
            path, begun = Path(folder) / f"{i}.npy", time.monotonic()
            fault = run(form, device, path, min(longest, max(5.0, deadline - begun)))
            row: dict[str, Any] = {**asdict(form), "fault": fault}
            if not fault:
                found = np.load(path)
                wanted = found if wanted is None else wanted
                row["error"] = error(found, wanted)
                row["other_tokens"] = int((found.argmax(1) != wanted.argmax(1)).sum())
            rows.append({**row, "seconds": round(time.monotonic() - begun, 1)})
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    if row["fault"]:
        return f"{row['name']:<40} {row['fault']}"
    verdict = "" if row["error"] <= BOUND else "  TOO FAR OFF"
    return (
        f"{row['name']:<40} error {row['error']:.2e}, {row['other_tokens']} of {sum(BATCHES)} tokens differ, "
        f"{row['seconds']:.1f} s{verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", default="CUDA0")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="seconds of one form")
    parser.add_argument("--form", help=argparse.SUPPRESS)  # of the processes that this one starts
    args = parser.parse_args()
    if args.form:
        (form,) = (form for form in FORMS if form.name == args.form)
        np.save(args.result, compute(form, args.device))
        return 0
    rows = check(args.device, args.seconds, args.longest)
    args.result.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(not row["fault"] and row["error"] <= BOUND for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
