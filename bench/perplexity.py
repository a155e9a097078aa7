"""Compare the perplexity of real text with the unpatched library's, in every form of the split.

The text is the documentation of modules of the standard library that `tools.split_dense` does not make models
from. It is read in pieces of 128 tokens, in batches of 64 with one thread, and the split runs on the
simulated device. Before each piece spac answers a question, so that the scheduler changes what is in slots. A
form is right if its perplexity has the unpatched library's seven digits on the CPU. Mixed layers are those
that neither the device nor the CPU computed alone, batch by batch; streamed ones count as mixed. --used has
further numbers of experts per token, by the metadata of the file, and --dense names the model that was split.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.page import output, publish, table
from bench.processes import ROOT, cause, environment
from spac.errors import InputError
from tools.compare.driver import reference_library
from tools.split_dense.text import HELD_OUT, QUESTIONS, chat_prompt, docstrings

SHARES = ("10%", "25%", "100%")
FORMS: dict[str, dict[str, Any]] = {
    "looking ahead": {"lookahead": 1},
    "misses loaded": {"miss": "load"},
    "prompt streamed": {"stream_batch": 32},
}
"""Forms of the split beside the plain one, with 25 % of the experts in slots."""
Row = tuple[str, float, str]
"""Name, perplexity and share of mixed layers."""
PIECE = 128
"""Tokens of a piece of text."""


def perplexity(logarithms: Any) -> float:
    """Return the perplexity of tokens with these log probabilities."""
    return math.exp(-sum(map(float, logarithms)) / len(logarithms))


def shown(value: float) -> str:
    """Return a perplexity with the digits that float32 has."""
    return f"{value:#.7g}"


def ours(path: Path, n_piece: int, **options: Any) -> tuple[float, str, list[list[int]]]:
    """Return spac's perplexity of pieces of the text, the share of mixed layers, and the pieces' tokens."""
    from spac.config import EngineConfig
    from spac.engine import Engine
    from spac.engine.scoring import score

    context = {"ctx": 512, "threads": 1, "threads_batch": 1, "flash_attn": "on", "state": "off"}
    with Engine(EngineConfig(target=path, **{"device": "simulated", **context, **options})) as engine:
        tokens = engine.tokenize("\n\n".join(docstrings(HELD_OUT)))
        # No piece begins as a question does, whose states would be used again.
        pieces = [tokens[at : at + PIECE + 1] for at in range(1, n_piece * PIECE, PIECE)]
        scores: list[float] = []
        sides = np.zeros(3, np.int64)
        for piece, question in zip(pieces, QUESTIONS, strict=False):
            for _ in engine.generate(chat_prompt(question), 12):
                pass
            before = _sides(engine)
            scores += score(engine, piece).chosen.tolist()
            sides += _sides(engine) - before
        mixed = f"{1 - sides[1:].sum() / sides[0]:.0%}" if sides[0] else ""
        return perplexity(scores), mixed, [piece.tolist() for piece in pieces]


def _sides(engine: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of layers that were computed: all, by the device alone, by the CPU alone."""
    stats = engine.experts.stats if engine.experts is not None else {}
    return np.array([stats.get(key, 0) for key in ("blocks", "blocks_device", "blocks_host")])


def theirs(path: Path, pieces: list[list[int]]) -> float:
    """Return the unpatched library's perplexity of the pieces. Raise InputError if it cannot be had."""
    folder = reference_library()
    if folder is None:
        raise InputError("set SPAC_REFERENCE_LIB to the folder of the unpatched library")
    call = [sys.executable, "-m", "bench.unpatched", str(path), "1", "scores"]
    done = subprocess.run(
        call, cwd=ROOT, env=environment(folder), input=json.dumps(pieces), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise InputError(f"the unpatched library failed: {cause(done.stderr)}")
    return perplexity(json.loads(done.stdout))


def forms(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the options of each form by its name."""
    found = {
        f"{share}, {name}": {"slots": share, "scheduler": name}
        for share in SHARES
        for name in (names if share != SHARES[-1] else names[:1])
    }
    return found | {f"25%, {name}": {"slots": "25%", **more} for name, more in FORMS.items()}


def options(parser: argparse.ArgumentParser) -> None:
    from spac.scheduler import names

    drafts = ("moe-speq", "sp-moe")  # these need a draft model
    parser.add_argument("model", type=Path, help="a model with experts")
    parser.add_argument("--pieces", type=int, default=4, help="pieces of text")
    parser.add_argument("--schedulers", nargs="+", default=[each for each in names() if each not in drafts])
    parser.add_argument(
        "--used", type=int, nargs="*", default=[], help="further numbers of experts per token"
    )
    parser.add_argument("--dense", type=Path, help="the model that was split")
    output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the page. Return 1 if a form's perplexity is another one."""
    alone, _, pieces = ours(args.model, args.pieces, device="cpu")
    wanted = theirs(args.model, pieces)
    rows: list[Row] = [("the unpatched library", wanted, ""), ("without the split", alone, "")]
    for name, values in forms(args.schedulers).items():
        rows.append((name, *ours(args.model, args.pieces, **values)[:2]))
    different = [name for name, value, _ in rows if shown(value) != shown(wanted)]
    verdict = f"{len(rows) - 1 - len(different)} of {len(rows) - 1} equal the unpatched library's."
    for used in args.used:
        values = {"override_kv": {f"{architecture(args.model)}.expert_used_count": used}}
        value, *_ = ours(args.model, args.pieces, device="cpu", **values)
        rows.append((f"{used} experts per token", value, ""))
    if args.dense:
        rows.append(("the dense model", ours(args.dense, args.pieces, device="cpu")[0], ""))
    lines = [[name, shown(value), mixed] for name, value, mixed in rows]
    head = f"Perplexity of {args.pieces} pieces of {PIECE} tokens. {verdict}"
    text = f"{head}\n\n{table(('form', 'perplexity', 'mixed layers'), lines)}"
    publish(args, "Perplexity of real text", text, rows)
    return int(bool(different))


def architecture(path: Path) -> str:
    """Return the architecture of a GGUF file."""
    from gguf import GGUFReader

    return str(GGUFReader(path).fields["general.architecture"].contents())
