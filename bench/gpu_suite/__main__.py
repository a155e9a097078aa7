"""Check the patches for all weight types on a device, with a library that is built.

    python -m bench.gpu_suite OUT [--library FILE] [--device CUDA0] [--types q4_K,q8_0] [--seconds 540]
                                  [--jobs N] [--quick]

OUT gets patches.json and patches.txt. Each type runs in a process of its own, whose result stays in OUT. A
run that used up its seconds (exit code 3) is called again in the same way and continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.gpu_suite.watched import cause
from spac import _library
from tools.patches.ggml import Ggml

ROOT = Path(__file__).resolve().parents[2]
UNFINISHED = 3


def check(args: argparse.Namespace, kinds: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the results of the types, with those of earlier runs, and the types that lacked time."""
    deadline = time.monotonic() + args.seconds
    parts = args.out / f"types-{args.device}{'-quick' if args.quick else ''}"
    parts.mkdir(parents=True, exist_ok=True)

    def run(kind: str) -> dict[str, Any] | None:
        part = parts / f"{kind}.json"
        left = deadline - time.monotonic()
        if not part.is_file():
            words = [sys.executable, "-m", "bench.gpu_suite.masks_on_device", args.library, args.device]
            words += [kind, part, *(["--quick"] if args.quick else [])]
            try:
                done = subprocess.run(
                    list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=max(0, left),
                    check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return None
            if done.returncode != 0:
                (parts / f"{kind}.txt").write_text(done.stdout + done.stderr)
                why = f"{kind}: status {done.returncode}: {cause(done.stderr)}"
                return {"kind": kind, "failures": [why]}
        return json.loads(part.read_text())  # type: ignore[no-any-return]

    with ThreadPoolExecutor(max(1, min(4, args.jobs // 2))) as pool:
        results = list(pool.map(run, kinds))
    unfinished = [kind for kind, result in zip(kinds, results, strict=True) if result is None]
    return [result for result in results if result is not None], unfinished


def page(device: str, quick: bool, results: list[dict[str, Any]], unfinished: list[str]) -> str:
    """Return the results on one page."""
    lines = [
        f"The ids mask on {device}: mul_mat_id, add_id, fused bias, gate and GLU,",
        f"{'1, 5, 9, 33' if quick else '1 to 64'} tokens, masks from none to all.",
        "",
        f"{'type':<9}{'shapes':>7}{'kept':>9}{'skipped':>9}{'not zero':>9}{'changed':>9}{'(rows)':>8}"
        f"{'error/bound':>12}{'seconds':>9}",
    ]  # fmt: skip
    for r in results:
        if "n_shapes" not in r:
            lines.append(f"{r['kind']:<9}crashed")
        elif not r["supported"]:
            lines.append(f"{r['kind']:<9}no kernel on this device")
        else:
            lines.append(
                f"{r['kind']:<9}{r['n_shapes']:>7}{r['n_kept']:>9}{r['n_skipped']:>9}{r['n_nonzero']:>9}"
                f"{r['n_unequal']:>9}{r['n_unequal_rows']:>8}{r['worst_error']:>12.3f}{r['seconds']:>9}"
            )
    failures = [line for r in results for line in r["failures"]]
    lines += ["", *failures, *(f"{kind}: not run yet" for kind in unfinished)]
    lines.append(
        "changed: kept rows that differ by a bit from the device's own run, when whole experts are masked;"
        "\n(rows): the same for masks of single rows, where another order of additions is allowed."
    )
    if failures:
        lines.append("FAILED")
    elif not unfinished:
        changed = sum(r.get("n_unequal", 0) for r in results)
        lines.append(
            "PASSED"
            + ("" if not changed else ", but masks change bits of kept rows: residency is not bit-exact here")
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Return the exit code: 0 if all is right, 1 if not, 3 if time ran out."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_suite", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("out", type=Path, help="where the results go")
    add("--library", type=Path, default=_library.library_path())
    add("--device", default="CUDA0", help="CUDA0, …, or CPU to try the check itself")
    add("--types", help="weight types, separated by commas (default: all)")
    add("--seconds", type=float, default=540, help="stop after that many")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    add("--quick", action="store_true", help="four numbers of tokens in place of 64")
    args = parser.parse_args()
    begun, ggml = time.monotonic(), Ggml(args.library)
    kinds = args.types.split(",") if args.types else list(ggml.types)
    results, unfinished = check(args, kinds)
    device = ggml.description(ggml.device(args.device))
    text = page(f"{args.device} ({device})", args.quick, results, unfinished)
    (args.out / "patches.txt").write_text(text)
    summary = {"device": device, "seconds": round(time.monotonic() - begun, 1), "unfinished": unfinished,
               "types": results}  # fmt: skip
    (args.out / "patches.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(text, end="")
    return UNFINISHED if unfinished else int(any(r["failures"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
