"""Run stage 1: build with CUDA, and check the patches for all weight types on the GPU.

    python -m bench.gpu_suite OUT [--device CUDA0] [--work FOLDER] [--source FOLDER|ARCHIVE]
                                  [--objects FOLDER] [--library FILE] [--types q4_K,q8_0] [--seconds 540]
                                  [--jobs N] [--quick] [--no-cost]

OUT (or the environment's OUT) gets patches.json and patches.txt. Results are kept in the work folder. A run
that used up its seconds (exit code 3) is called again in the same way and continues. README.md says what a
machine without a network needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Nothing needs to be installed: the processes started below find the tree too.
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from bench.gpu_suite.keeper import unpack  # noqa: E402
from bench.gpu_suite.watched import cause  # noqa: E402
from tools.patches.ggml import Ggml  # noqa: E402

UNFINISHED = 3


class OutOfTimeError(Exception):
    """The seconds are used up. Another run continues."""


class Suite:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work: Path = args.work.resolve()
        self.deadline = time.monotonic() + args.seconds
        self.unfinished: list[str] = []  # types that were not checked in time
        self.work.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        """Return the seconds that a command may still take. Raise OutOfTimeError when none are left."""
        left = self.deadline - time.monotonic()
        if left < 2:
            raise OutOfTimeError
        return left

    def command(self, *words: object) -> None:
        """Run a command. Its output goes to the log, whose last lines are printed when it fails."""
        with (self.work / "log.txt").open("a+") as log:
            log.write(f"$ {' '.join(map(str, words))}\n")
            log.flush()
            try:
                done = subprocess.run(
                    list(map(str, words)), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                    timeout=self.left(), check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise OutOfTimeError from None
        if done.returncode != 0:
            tail = (self.work / "log.txt").read_text().splitlines()[-15:]
            sys.exit("\n".join([*tail, f"{words[0]} failed with status {done.returncode}"]))

    def source(self) -> list[str]:
        """Return the option that names llama.cpp's source, unpacked when it came as an archive."""
        path = self.args.source
        if path is None:
            return []
        folder = self.work / "llama.cpp"
        if path.is_dir():
            folder = path.resolve()
        elif not (folder / "ggml" / "CMakeLists.txt").is_file():
            unpack(path, folder)
        return [f"-DSPAC_LLAMA_CPP_DIR={folder}"]

    def configure(self, *options: object) -> Path:
        """Return the configured build folder, with CUDA where the device has it."""
        build, args = self.work / "build", self.args
        words = [
            "-G",
            "Ninja",
            "-S",
            ROOT,
            "-B",
            build,
            f"-DPython_EXECUTABLE={sys.executable}",
            *self.source(),
        ]
        words += [f"-DSPAC_CUDA={'on' if args.device.upper().startswith('CUDA') else 'off'}", *options]
        if args.objects:
            words.append(f"-DSPAC_CUDA_OBJECTS={args.objects.resolve()}")
        if args.cublas:
            words.append(f"-DSPAC_CUBLAS_ROOT={args.cublas.resolve()}")
        if args.architectures:
            words.append(f"-DSPAC_CUDA_ARCHITECTURES={args.architectures}")
        self.command("cmake", *words)
        return build

    def build(self) -> Path:
        """Build spac's library and return its path."""
        if self.args.library:
            return self.args.library.resolve()  # type: ignore[no-any-return]
        build = self.configure()
        self.command("ninja", "-C", build, "-j", self.args.jobs, "spac-llama")
        return build / "spac" / "lib" / "libllama.so"

    def check(self, library: Path) -> list[dict[str, Any]]:
        """Return the results of all types, with those of earlier runs."""
        stamp = f"{patches_id()}-{self.args.device}{'-quick' if self.args.quick else ''}"
        parts = self.work / f"parts-{stamp}"
        parts.mkdir(exist_ok=True)
        kinds = self.args.types.split(",") if self.args.types else list(Ggml(library).types)
        quick = ["--quick"] if self.args.quick else []

        def run(kind: str) -> dict[str, Any] | None:
            part = parts / f"{kind}.json"
            if not part.is_file():
                try:
                    done = self.python("masks_on_device", library, self.args.device, kind, part, *quick)
                except (OutOfTimeError, subprocess.TimeoutExpired):
                    return None
                if done.returncode != 0:
                    (parts / f"{kind}.txt").write_text(done.stdout + done.stderr)
                    why = f"{kind}: status {done.returncode}: {cause(done.stderr)}"
                    return {"kind": kind, "failures": [why]}
            return json.loads(part.read_text())  # type: ignore[no-any-return]

        with ThreadPoolExecutor(max(1, min(4, self.args.jobs // 2))) as pool:
            results = list(pool.map(run, kinds))
        self.unfinished = [kind for kind, result in zip(kinds, results, strict=True) if result is None]
        return [result for result in results if result is not None]

    def cost(self, library: Path) -> list[dict[str, Any]]:
        """Return mask_cost's table, empty when there was no time for it."""
        part = self.work / "cost.json"
        part.unlink(missing_ok=True)
        quick = ["--quick"] if self.args.quick else []
        try:
            self.python("mask_cost", library, self.args.device, part, *quick)
            return json.loads(part.read_text())  # type: ignore[no-any-return]
        except (OutOfTimeError, subprocess.TimeoutExpired, OSError):
            return []

    def python(self, module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a module of this folder in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", f"bench.gpu_suite.{module}", *map(str, arguments)],
            cwd=ROOT, capture_output=True, text=True, timeout=self.left(), check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip


def patches_id() -> str:
    """Return an id of the patches: results of one machine's build hold for another's of the same patches."""
    digest = hashlib.sha256((ROOT / "LLAMA_CPP_VERSION").read_bytes())
    for path in sorted((ROOT / "patches").glob("*.patch")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def build_options(add: Callable[..., object]) -> None:
    """Add the options of every program that builds."""
    add("--work", type=Path, default=ROOT / "build" / "gpu_suite", help="what later runs go on from")
    add("--source", type=Path, help="llama.cpp's tree, or an archive of it, in place of the sdist")
    add("--objects", type=Path, help="ggml-cuda's objects, compiled elsewhere (pack.py)")
    add("--cublas", type=Path, help="a folder with cuBLAS in its lib/")
    add("--architectures", help="of CUDA, as CMAKE_CUDA_ARCHITECTURES (default: this machine's GPUs)")
    add("--seconds", type=float, default=540, help="stop after that many")
    add("--jobs", type=int, default=os.cpu_count() or 1)


def cost_table(cost: list[dict[str, Any]]) -> str:
    lines = [f"{'slots':>6}{'tokens':>8}   microseconds of one mul_mat_id (q4_K) with none, half, all masked"]
    for row in cost:
        times = "".join(f"{value:>10.1f}" for value in row["microseconds"].values())
        lines.append(f"{row['slots']:>6}{row['tokens']:>8}{times}")
    return "\n" + "\n".join(lines) + "\n" if cost else ""


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
    if not failures and not unfinished:
        changed = sum(r.get("n_unequal", 0) for r in results)
        lines.append(
            "PASSED"
            + ("" if not changed else ", but masks change bits of kept rows: residency is not bit-exact here")
        )
    elif failures:
        lines.append("FAILED")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "out", nargs="?", type=Path, default=os.environ.get("OUT"), help="where the results go"
    )
    parser.add_argument("--device", default="CUDA0", help="CUDA0, …, or CPU to try the suite itself")
    build_options(parser.add_argument)
    parser.add_argument("--library", type=Path, help="a library that is already built")
    parser.add_argument("--types", help="weight types, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="four numbers of tokens in place of 64")
    parser.add_argument("--no-cost", action="store_true", help="leave out what an operation takes")
    args = parser.parse_args()
    if args.out is None:
        parser.error("name a folder for the results, or set OUT")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    suite = Suite(args)
    try:
        library = suite.build()
        built = time.monotonic()
        results = suite.check(library)
        cost = [] if suite.unfinished or args.no_cost else suite.cost(library)
    except OutOfTimeError:
        print("out of time while building: run the same command again, it goes on", file=sys.stderr)
        return UNFINISHED
    ggml = Ggml(library)
    device = ggml.description(ggml.device(args.device))
    text = page(f"{args.device} ({device})", args.quick, results, suite.unfinished) + cost_table(cost)
    (out / "patches.txt").write_text(text)
    summary = {
        "device": device,
        "seconds": round(time.monotonic() - built, 1),
        "unfinished": suite.unfinished,
        "cost": cost,
        "types": results,
    }
    (out / "patches.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(text, end="")
    if suite.unfinished:
        return UNFINISHED
    return 1 if any(r["failures"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
