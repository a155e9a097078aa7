"""Compare spac with the reference on one model file: ``python -m tools.compare MODEL.gguf [--share 0.25]
[--no-masks] …``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tools.compare.driver import compare, reference_library, run_worker
from tools.compare.job import Case, Job, Run, Settings


def main(argv: list[str] | None = None) -> int:
    """Return 0 when every run is bit for bit the reference, 1 when not, 2 when there is no reference."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument(
        "--share", type=float, nargs="+", default=[0.0, 0.25, 1.0], help="shares of experts in slots"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random plan")
    parser.add_argument("--moving", action="store_true", help="a new plan before every step")
    parser.add_argument("--no-masks", action="store_true", help="the device does not read the ids masks")
    parser.add_argument("--fail-uploads", type=int, default=0, help="so many copies into slots fail")
    parser.add_argument("--lora", default="", help="an adapter to apply")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ubatch", type=int, default=256)
    parser.add_argument("--flash-attn", action="store_true")
    args = parser.parse_args(argv)
    library = reference_library()
    if library is None:
        print(
            "no stock library: build with -DSPAC_BUILD_REFERENCE=ON or set SPAC_REFERENCE_LIB",
            file=sys.stderr,
        )
        return 2
    runs = tuple(
        Run(
            f"share {share:g}",
            share,
            args.seed,
            moving=args.moving,
            masked=not args.no_masks,
            fail_uploads=args.fail_uploads,
        )
        for share in args.share
    )
    settings = Settings(n_threads=args.threads, n_ubatch=args.ubatch, flash_attn=args.flash_attn)
    cases = [
        Case(Path(model).name, str(Path(model).resolve()), settings, runs, lora=args.lora)
        for model in args.models
    ]
    failed = False
    with tempfile.TemporaryDirectory() as name:
        job = Job(tuple(replace(case, runs=(Run(),)) for case in cases))
        reference = run_worker("reference", job, Path(name), lib_path=library)
        ours = run_worker("spac", Job(tuple(cases)), Path(name))
    for case in cases:
        differences = {d.run: str(d) for d in compare(case, ours, reference)}
        for run in runs:
            print(
                differences.get(run.name, f"{case.name}, {run.name}: equal"),
                ours.meta[f"{case.name}|{run.name}"],
            )
        failed = failed or bool(differences)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
