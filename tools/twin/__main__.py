"""Make a full-size twin: a GGUF of a named model's shapes with synthetic weights that imitate its routing.

    python -m tools.twin NAME OUT [--type q4_k_m|q8_0|f16|mxfp4] [--draft OUT2] [--agreement 0.8]
                                  [--locality KEPT,NEAR] [--skew SHARE] [--width N] [--vocab N] [--seed N]
    python -m tools.twin measure FILE [--draft FILE] [--tokens 400] [--json FILE]

README.md describes how twins are made, and how closely they follow their models.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spac.errors import SpacError
from tools.twin.catalog import MODELS
from tools.twin.drift import DRAFTS, PAPER_GROWTH, PUBLISHED, Drift, solve
from tools.twin.writer import MIXES, Twin, draft_of, write_twin

if TYPE_CHECKING:
    from tools.twin.measure import Measured


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
    shape = model.shape
    if args.width:
        model = model.narrow(args.width, args.vocab)
    elif args.vocab:
        model = replace(model, shape=replace(shape, n_vocab=args.vocab))
    if args.drift:
        share, persistence = args.drift
        drift = Drift(share, persistence, args.skew)
    elif args.locality:
        if not shape.n_expert:
            raise ValueError(f"--locality: {args.name} has no experts")
        drift = solve(*args.locality, shape.n_expert, shape.n_used, args.skew)
    else:
        drift = solve(*PUBLISHED, 128, 8, args.skew)
    twin = Twin(args.name, model, args.type or model.mix, drift, args.seed)
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


def report(path: Path, found: Measured) -> str:
    """Return the figures beside those published."""
    place = found.locality
    lines = [
        f"{path.name}: {found.n_token} greedy tokens, {found.in_chain:.1%} of them in the chain, "
        f"{found.tokens_per_second:.1f} tokens/s",
        f"experts kept from the last token   {place.kept:6.1%}   (Qwen3-30B, published: {PUBLISHED[0]:.0%})",
        f"        used within 8 tokens       {place.near:6.1%}   (Qwen3-30B, published: {PUBLISHED[1]:.0%})",
        f"activations of the busiest tenth   {place.load:6.1%}",
        "experts of a step over a token's, by draft length (MoE-SpAc, Appendix A.1, of Qwen3-235B-A22B):",
        "   ".join(f"{n}: {place.growth[n]:.2f} ({PAPER_GROWTH[n]:.2f})" for n in DRAFTS),
    ]
    if found.agreement is not None and found.acceptance is not None:
        lines.append(
            f"the draft is right about {found.agreement:.1%} of tokens; "
            f"accepted of 8 drafted: {found.acceptance:.1%}"
        )
    return "\n".join(lines)


def show(args: argparse.Namespace) -> None:
    from tools.twin.measure import measure  # the only part that needs spac to be built

    found = measure(
        args.file, args.tokens, draft=args.draft, threads=args.threads, start=args.start, device=args.device
    )
    print(report(args.file, found))
    if args.json:
        args.json.write_text(json.dumps({"file": args.file.name, **found.to_dict()}, indent=1) + "\n")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.twin", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in MODELS:
        one = commands.add_parser(name)
        one.add_argument("out", type=Path)
        one.add_argument("--type", choices=MIXES, help=f"weights (default: {MODELS[name].mix})")
        one.add_argument("--draft", type=Path, metavar="OUT2", help="write a draft of the same chain here")
        one.add_argument(
            "--agreement", "--acceptance", type=float, default=0.8, metavar="SHARE",
            help="tokens whose successor the draft knows (default 0.8)",
        )  # fmt: skip
        one.add_argument("--locality", type=numbers, metavar="KEPT,NEAR",
                         help="shares of a token's experts that the last token, and one of the last 8, had "
                         "(default: the drift that gives 128 experts, 8 used, the published 0.45,0.80)",
                         )  # fmt: skip
        one.add_argument("--drift", type=numbers, metavar="SHARE,PERSISTENCE", help="instead of --locality")
        one.add_argument(
            "--skew", type=float, default=0.0, metavar="SHARE", help="of the embeddings that never changes"
        )
        one.add_argument(
            "--width", type=int, default=0, help="narrow layers: routing as it is, quick to compute"
        )
        one.add_argument("--vocab", type=int, default=0, metavar="N", help="tokens (default: the model's)")
        one.add_argument("--seed", type=int, default=0)
        one.set_defaults(run=write)
    two = commands.add_parser(
        "measure", help="run a twin and print its locality, its chain, its draft's acceptance"
    )
    two.add_argument("file", type=Path)
    two.add_argument("--draft", type=Path)
    two.add_argument("--tokens", type=int, default=400)
    two.add_argument("--start", type=int, default=0, help="the token of the chain to begin with")
    two.add_argument("--threads", type=int, default=0)
    two.add_argument(
        "--device", default="simulated", help="as spac's; not cpu, which has no experts to count"
    )
    two.add_argument("--json", type=Path)
    two.set_defaults(run=show)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    args = arguments().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError, SpacError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
