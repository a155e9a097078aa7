"""Run stages 2 and 3: full-size twins, and spac beside llama.cpp on them.

    python -m bench.gpu_suite.side_by_side OUT [--stage 2|3] [--device CUDA0] [--work FOLDER]
                       [--model NAME] [--models FOLDER] [--source FOLDER|ARCHIVE] [--objects FOLDER]
                       [--no-build] [--only build|twins|compare] [--seconds 540] [--quick]

Stage 2 is one budget (17 %), one context and the deciding engines. Stage 3 is the whole grid. The program
builds spac and the unpatched library with CUDA into the tree, writes the twins, and runs `bench.compare`.
Results stay in the work folder. A run that used up its seconds (exit code 3) is called again in the same way.
OUT gets the pages and the cells' results. On a fresh machine, put them back under the work folder's
`compare`, and they are not run again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu_suite.__main__ import ROOT, UNFINISHED, OutOfTimeError, Suite, build_options

DECIDING = ("spac logistic, draft", "governor", "llama.cpp")
"""Parts of the names of stage 2's engines. It has all of llama.cpp's, because they are tuned to spac's
VRAM."""


class SideBySide(Suite):
    """Build, twins and comparison; each continues where the last call stopped."""

    def build_package(self) -> None:
        """Build spac's extension module, its library and the unpatched one, into the tree."""
        build = self.configure("-DSPAC_BUILD_REFERENCE=ON")
        self.command("ninja", "-C", build, "-j", self.args.jobs)
        shutil.copytree(build / "spac", ROOT / "python" / "spac", dirs_exist_ok=True)

    def twins(self) -> tuple[Path, Path]:
        """Return (target, draft), written once."""
        folder = (self.args.models or self.work).resolve()
        target, draft = (folder / f"{self.args.model}-{role}.gguf" for role in ("target", "draft"))
        if not draft.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = [path.with_suffix(".part") for path in (target, draft)]
            self.command(
                sys.executable, "-m", "tools.twin", self.args.model, unfinished[0], "--draft", unfinished[1]
            )
            for path, final in zip(unfinished, (target, draft), strict=True):
                path.replace(final)
        return target, draft

    def compare(self, target: Path, draft: Path, out: Path) -> int:
        """Return bench.compare's exit code. Its pages go to OUT in any case."""
        place = self.work / "compare"
        words = [sys.executable, "-m", "bench.compare", place, "--target", target, "--draft", draft]
        words += ["--device", self.args.device, "--seconds", int(self.left())]
        words += plan(self.args.stage, self.args.quick)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([str(word) for word in words], cwd=ROOT, env=environment, check=False)
        if place.is_dir():
            shutil.copytree(place, out, dirs_exist_ok=True)
        return done.returncode


def plan(stage: int, quick: bool) -> list[str]:
    """Return bench.compare's options for a stage."""
    only = ["--only", *DECIDING] if stage == 2 else []
    if quick:
        return [*only, "--quick"]
    return ["--budgets", "17%", "--contexts", "512", *only] if stage == 2 else []


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("out", nargs="?", type=Path, default=os.environ.get("OUT"), help="where the results go")
    add("--stage", type=int, choices=(2, 3), default=2)
    add("--device", default="CUDA0", help="CUDA0, …; simulated to try the stage itself")
    add("--model", default="qwen3-30b-a3b", help="a name of tools.twin's; tiny to try the stage itself")
    add("--models", type=Path, help="where the twins lie (default: the work folder)")
    add("--no-build", action="store_true", help="the tree has been built, the unpatched library too")
    add("--only", choices=("build", "twins", "compare"), help="one of the parts")
    build_options(add)
    add("--quick", action="store_true")
    args = parser.parse_args(argv)
    if args.out is None:
        parser.error("name a folder for the results, or set OUT")
    suite, begun = SideBySide(args), time.monotonic()
    try:
        if not args.no_build and args.only in (None, "build"):
            suite.build_package()
        built = time.monotonic()
        if args.only == "build":
            return 0
        target, draft = suite.twins()
        print(f"built in {built - begun:.0f} s, twins in {time.monotonic() - built:.0f} s", file=sys.stderr)
        return 0 if args.only == "twins" else suite.compare(target, draft, Path(args.out))
    except OutOfTimeError:
        print("out of time before the comparison: run the same command again, it goes on", file=sys.stderr)
        return UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
