"""Benchmarks' programs share this: errors as one line, a page with its figures beside, names of systems."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.provenance import where
from spac.config.engine import MISS_WORDS
from spac.errors import InputError, SpacError


def run_program(run: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Call `run`, and return the exit code. Bad input gets one line on stderr."""
    try:
        run(args)
    except (ValueError, OSError, SpacError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def write_page(parser: argparse.ArgumentParser, program: str, argv: Sequence[str] | None) -> int:
    """Parse the arguments, print what `args.action(args)` returns, and return the exit code.

    --out writes it behind a comment with the command and the machine, which are also `args.command_line` and
    `args.where`. Bad input gets one line on stderr.
    """
    args = parser.parse_args(argv)
    words = [word.rstrip("/").rpartition("/")[2] for word in (argv if argv is not None else sys.argv[1:])]
    args.command_line, args.where = " ".join([f"python -m {program}", *words]), where()

    def write(args: argparse.Namespace) -> None:
        text = args.action(args)
        print(text)
        if args.out:
            args.out.write_text(f"<!-- {args.command_line}; {args.where} -->\n{text}\n")

    return run_program(write, args)


def publish(text: str, out: Path | None, title: str, figures: Any) -> None:
    """Print a page. If `out` is given, write the page there under a title, and its figures beside it as
    .json."""
    print(text)
    if out:
        out.write_text(f"{title}\n\n{text}\n")
        out.with_suffix(".json").write_text(json.dumps(figures) + "\n")


def with_misses(name: str) -> tuple[str, str]:
    """Return the values of --scheduler and --miss that a name means: "lru load" has both, "lru" has "cpu".

    Raise InputError for another second word.
    """
    scheduler, _, miss = name.partition(" ")
    if miss and miss not in MISS_WORDS:
        raise InputError(f"misses are computed by {', '.join(MISS_WORDS)}, not '{miss}'")
    return scheduler, miss or "cpu"
