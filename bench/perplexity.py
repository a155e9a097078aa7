"""Compare the perplexity of real text with the unpatched library's, in every form of the split.

The text is the documentation of modules of the standard library that `tools.split_dense` does not make models
from. It is read in batches of 64 tokens with one thread, and the split runs on the simulated device. A form
is right if all digits of its perplexity are those of the unpatched library on the CPU. Hits are the share of
activations whose expert is in a slot. --used has further numbers of experts per token, by the metadata of the
file, and --dense has the model that was split.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.page import output, publish, table
from bench.processes import ROOT, cause, environment
from spac.errors import InputError
from tools.compare.driver import reference_library
from tools.split_dense.text import HELD_OUT, docstrings

SHARES = ("10%", "25%", "100%")
FORMS: dict[str, dict[str, Any]] = {
    "looking ahead": {"lookahead": 1},
    "misses loaded": {"miss": "load"},
    "prompt streamed": {"stream_batch": 32},
}
"""Forms of the split beside the plain one, with 25 % of the experts in slots."""
Row = tuple[str, float, str]
"""Name, perplexity and hits."""


def perplexity(logarithms: Any) -> float:
    """Return the perplexity of tokens with these log probabilities."""
    return math.exp(-sum(map(float, logarithms)) / len(logarithms))


def ours(path: Path, n_token: int, **options: Any) -> tuple[float, str, list[int]]:
    """Return spac's perplexity of the first tokens of the text, the hits, and the tokens."""
    from spac.config import EngineConfig
    from spac.engine import Engine
    from spac.engine.scoring import score

    context = {"ctx": n_token + 64, "threads": 1, "threads_batch": 1, "flash_attn": "on", "state": "off"}
    with Engine(EngineConfig(target=path, **{"device": "simulated", **context, **options})) as engine:
        tokens = engine.tokenize("\n\n".join(docstrings(HELD_OUT)))[: n_token + 1]
        for _ in engine.generate("The", 4):  # the scheduler's work begins with the first generation
            pass
        before = dict(engine.experts.stats) if engine.experts is not None else {}
        found, hits = perplexity(score(engine, tokens).chosen), ""
        if engine.experts is not None:
            hit, of = (engine.experts.stats[key] - before[key] for key in ("activations_hit", "activations"))
            hits = f"{hit / of:.1%}" if of else "not counted"
        return found, hits, tokens.tolist()


def theirs(path: Path, tokens: list[int]) -> float:
    """Return the unpatched library's perplexity of the tokens. Raise InputError if it cannot be had."""
    folder = reference_library()
    if folder is None:
        raise InputError("set SPAC_REFERENCE_LIB to the folder of the unpatched library")
    call = [sys.executable, "-m", "bench.unpatched", str(path), "1", "scores"]
    done = subprocess.run(
        call, cwd=ROOT, env=environment(folder), input=json.dumps(tokens), capture_output=True, text=True,
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
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--schedulers", nargs="+", default=[each for each in names() if each not in drafts])
    parser.add_argument(
        "--used", type=int, nargs="*", default=[], help="further numbers of experts per token"
    )
    parser.add_argument("--dense", type=Path, help="the model that was split")
    output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the page. Return 1 if a form's perplexity is another one."""
    alone, _, tokens = ours(args.model, args.tokens, device="cpu")
    wanted = theirs(args.model, tokens)
    rows: list[Row] = [("the unpatched library", wanted, ""), ("without the split", alone, "")]
    for name, values in forms(args.schedulers).items():
        rows.append((name, *ours(args.model, args.tokens, **values)[:2]))
    different = [name for name, value, _ in rows if f"{value:.5f}" != f"{wanted:.5f}"]
    verdict = f"{len(rows) - 1 - len(different)} of {len(rows) - 1} equal the unpatched library's."
    for used in args.used:
        values = {"override_kv": {f"{architecture(args.model)}.expert_used_count": used}}
        value, *_ = ours(args.model, args.tokens, device="cpu", **values)
        rows.append((f"{used} experts per token", value, ""))
    if args.dense:
        rows.append(("the dense model", ours(args.dense, args.tokens, device="cpu")[0], ""))
    lines = [[name, f"{value:.5f}", hits] for name, value, hits in rows]
    text = f"Perplexity of {args.tokens} tokens. {verdict}\n\n{table(('form', 'perplexity', 'hits'), lines)}"
    publish(args, "Perplexity of real text", text, rows)
    return int(bool(different))


def architecture(path: Path) -> str:
    """Return the architecture of a GGUF file."""
    from gguf import GGUFReader

    return str(GGUFReader(path).fields["general.architecture"].contents())
