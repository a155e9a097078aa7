"""Check and measure all that needs a GPU, in calls of less than ten minutes on possibly fresh machines.

    python3 bench/gpu_suite/session.py [OUT] [--carry build/carry] [--device CUDA0] [--seconds 520]
           [--quick] [--triage|--figures]

It is called again and again in the same way, and continues where the last call stopped. It does so on another
machine too, when OUT/state.tar.gz of that call lies in the carry folder (`pack.py --results`). It begins with
the standard library alone. The carry folder, made by `pack.py`, has what the machine may lack. The order is:
a description of the machine; the build; the bundled pair on the GPU against the CPU; the patches for the
twins' weight types; the twins; spac beside llama.cpp, the deciding cells first; a timeline, the cost of
masks, the limit on memory; the patches for all types. OUT always holds the results so far, in at most eight
files. Exit code 0: all done; 3: call it again; 1: session.txt names the failures.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from bench.gpu_suite.course import Course  # noqa: E402
from bench.gpu_suite.figures import Figures  # noqa: E402
from bench.gpu_suite.triage import Triage  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("out", nargs="?", type=Path, default=os.environ.get("OUT"), help="where the results go")
    add("--carry", type=Path, default=ROOT / "build" / "carry", help="what pack.py made")
    add("--work", type=Path, default=ROOT / "build" / "gpu_suite", help="what later calls go on from")
    add("--device", default="CUDA0", help="CUDA0, …; simulated to rehearse without a GPU")
    add("--model", default="qwen3-30b-a3b", help="a name of tools.twin's; tiny to rehearse")
    add("--seconds", type=float, default=520, help="of this call")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    add("--quick", action="store_true", help="little of everything, to rehearse")
    add("--figures", action="store_true", help="the visit that measures, after a triage")
    add("--triage", action="store_true", help="the first visit: what works and what does not")
    args = parser.parse_args(argv)
    if args.out is None:
        parser.error("name a folder for the results, or set OUT")
    return (Figures if args.figures else Triage if args.triage else Course)(args).run()


if __name__ == "__main__":
    sys.exit(main())
