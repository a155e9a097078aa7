"""Make a full-size twin: a GGUF of a named model's shapes with synthetic weights that imitate its routing.

    python -m tools.twin NAME OUT [--type q4_k_m|q8_0|f16|mxfp4] [--draft OUT2] [--agreement 0.8]
                                  [--mtp] [--locality KEPT,NEAR] [--skew SHARE] [--width N] [--vocab N]
                                  [--seed N] [--sparse]
    python -m tools.twin measure FILE [--draft FILE] [--tokens 400]

README.md describes how twins are made, and how closely they follow their models.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from spac.errors import SpacError
from tools.twin.catalog import MODELS
from tools.twin.drift import PUBLISHED, solve
from tools.twin.measure import measure
from tools.twin.writer import MIXES, Twin, draft_of, write_twin


def numbers(text: str) -> tuple[float, float]:
    """Return the two numbers of a text with a comma between."""
    first, second = (float(part) for part in text.split(","))
    return first, second


def write_one(job: tuple[Path, Twin]) -> str:
    """Write a file. Return its cost as text."""
    path, twin = job
    begun = time.perf_counter()
    write_twin(path, twin)
    seconds, peak = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = path.stat().st_size / 1e9
    return f"{path}: {twin.name}, {twin.mix}, {size:.2f} GB in {seconds:.0f} s, peak memory {peak:.2f} GB"


def write(args: argparse.Namespace) -> None:
    model = MODELS[args.name]
    if args.width:
        model = model.narrow(args.width, args.vocab)
    elif args.vocab:
        model = replace(model, shape=replace(model.shape, n_vocab=args.vocab))
    if args.mtp:
        model = model.with_prediction()
    n_expert, n_used = (model.shape.n_expert, model.shape.n_used) if args.locality else (128, 8)
    if not n_expert:
        raise ValueError(f"--locality: {args.name} has no experts")
    drift = model.drift
    if drift is None or args.locality or args.skew:
        drift = solve(*(args.locality or PUBLISHED), n_expert, n_used, args.skew)
    twin = Twin(
        args.name, model, args.type or model.mix, drift, args.seed, prediction=args.agreement,
        has_weights=not args.sparse,
    )  # fmt: skip
    jobs = [(args.out, twin)]
    if args.draft:
        if model.draft is None:
            raise ValueError(f"--draft: {args.name} has no draft of its own; take a target")
        draft = MODELS[model.draft]
        draft = draft.narrow(args.width) if args.width else draft
        jobs.append((args.draft, draft_of(twin, draft, args.agreement, "q4_k_m", model.draft)))
    with ThreadPoolExecutor(len(jobs)) as pool:
        for line in pool.map(write_one, jobs):
            print(line, flush=True)
    print(f"drift: share {drift.share:.3f}, persistence {drift.persistence:.4f}, skew {drift.skew:.3f}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.twin", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, model in MODELS.items():
        add = commands.add_parser(name).add_argument
        add("out", type=Path)
        add("--type", choices=MIXES, help=f"weights (default: {model.mix})")
        add("--draft", type=Path, metavar="OUT2", help="write a draft of the same chain here")
        add("--agreement", type=float, default=0.8, metavar="SHARE",
            help="tokens whose successor the draft or the prediction layer knows (default 0.8)")  # fmt: skip
        add("--mtp", action="store_true", help="with a layer for multi-token prediction")
        add("--locality", type=numbers, metavar="KEPT,NEAR",
            help="shares of a token's experts that the last token, and one of the last 8, had "
            "(default: the model's published locality, see README.md)")  # fmt: skip
        add("--skew", type=float, default=0.0, metavar="SHARE", help="of the embeddings that never changes")
        add("--width", type=int, default=0, help="narrow layers: routing as it is, quick to compute")
        add("--vocab", type=int, default=0, metavar="N", help="tokens (default: the model's)")
        add("--seed", type=int, default=0)
        add("--sparse", action="store_true", help="a header and a hole: for plans, it does not run")
    add = commands.add_parser("measure", help="run a twin; print locality, chain and acceptance").add_argument
    add("file", type=Path)
    add("--draft", type=Path)
    add("--tokens", type=int, default=400)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    args = arguments().parse_args(argv)
    try:
        if args.name == "measure":
            found = measure(args.file, args.tokens, draft=args.draft)
            print(json.dumps({"file": args.file.name, **asdict(found)}, indent=1))
        else:
            write(args)
    except (ValueError, OSError, SpacError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
