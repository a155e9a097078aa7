"""Convert published routes of trained models into traces (docs/schedulers.md has the format).

    python -m bench.schedulers.convert OUT.npz FILE … [--experts N] [--expert-bytes N]

Every FILE is one sequence of one of these forms:

    .json   AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting: `router_data`, a list of {token_T: {layer_L:
            {selected_experts}}}; with a list of such objects, each is a sequence
    .jsonl  BrianBoitano/nvmoe: a line per token, a list of pairs [layer, expert]
    .csv    Helldez/BigMoeOnEdge, `--route-trace`: turn, phase, step, layer, slot, expert, …; only the rows of
            decoding (phase 1) count, and every turn is a sequence

Without --experts, a model has as many experts as the largest number among the files says.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bench.schedulers.trace import Trace
from spac.errors import InputError, SpacError
from spac.machine.arrays import Int32Array

Token = list[list[int]]
"""The experts of one token, [layer][used]."""


def fingerprints(path: Path) -> Iterator[list[Token]]:
    found = json.loads(path.read_text())
    for answer in found if isinstance(found, list) else [found]:
        tokens = [next(iter(each.values())) for each in answer["router_data"]]
        yield [
            [token[f"layer_{i}"]["selected_experts"] for i in range(len(token))] for token in tokens
        ]  # fmt: skip


def pairs(path: Path) -> Iterator[list[Token]]:
    lines = (json.loads(line) for line in path.read_text().splitlines() if line)
    yield [_by_layer((int(layer), int(expert)) for layer, expert in line) for line in lines]


def rows(path: Path) -> Iterator[list[Token]]:
    with path.open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        kept: list[dict[str, Any]] = [line for line in lines if line["phase"] == "1"]
    for _, turn in groupby(kept, key=lambda row: row["turn"]):
        steps = [list(step) for _, step in groupby(turn, key=lambda row: row["step"])]
        yield [_by_layer((int(row["layer"]), int(row["expert"])) for row in step) for step in steps]


READERS = {".json": fingerprints, ".jsonl": pairs, ".csv": rows}


def _by_layer(found: Iterable[tuple[int, int]]) -> Token:
    layers: dict[int, list[int]] = {}
    for layer, expert in found:
        layers.setdefault(layer, []).append(expert)
    return [layers[layer] for layer in sorted(layers)]


def read(path: Path) -> list[Int32Array]:
    """Return the sequences of a file, each int32 [T, L, U]. Raise InputError for a file of another form."""
    if path.suffix not in READERS:
        raise InputError(f"{path}: the forms are {', '.join(READERS)} (--help describes them)")
    try:
        return [np.array(tokens, np.int32) for tokens in READERS[path.suffix](path) if tokens]
    except (OSError, KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:
        raise InputError(f"{path}: not routes as --help describes them: {error}") from None


def convert(paths: Iterable[Path], n_expert: int = 0, expert_bytes: int = 0) -> Trace:
    """Return the trace of all files."""
    sequences = [each for path in paths for each in read(path)]
    if not sequences:
        raise InputError("the files have no tokens")
    if len(shapes := {each.shape[1:] for each in sequences}) > 1 or sequences[0].ndim != 3:
        raise InputError(f"the files are not of one model: [layers, used] are {sorted(shapes)}")
    experts = np.concatenate(sequences)
    lengths = np.array([len(each) for each in sequences], np.int32)
    return Trace(experts, lengths, n_expert or int(experts.max()) + 1, expert_bytes)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.schedulers.convert", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("out", type=Path, metavar="OUT.npz")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--experts", type=int, default=0, help="of a layer")
    parser.add_argument("--expert-bytes", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        trace = convert(args.files, args.experts, args.expert_bytes)
        trace.save(args.out)
    except SpacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    n_token, n_layer, n_used = trace.experts.shape
    print(
        f"{args.out}: {n_token} tokens in {len(trace.seq_len)} sequences, {n_layer} layers of "
        f"{trace.n_expert} experts, {n_used} used"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
