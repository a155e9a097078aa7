"""Measure a draft's short head: `python -m bench.draft_head --draft FILE [--target FILE --prompts FOLDER]`.

The first table has the time of a token of the draft with the whole head, with the short one and without one,
in turns, as medians of repeats. With a target, prompts of every set (a file of JSON objects with "turns", one
a line) are continued at a fixed draft length with both heads in turns. The second table has the acceptance,
and the tokens that the short head did not know.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.provenance import where
from spac import _core, env
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.model.c_api import Context, Model

LONGEST = 2000
"""The most characters of a prompt that are used."""


def times(given: argparse.Namespace) -> str:
    """Return a table of the times of one token."""
    _core.set_simulated_device(n_threads=given.threads)
    model = Model(given.draft, (_core.device_handle(given.device),), {})
    head = _core.ShortHead(given.rows)
    sizes = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_outputs_max": 1}
    with _core.ShortHeadScope(head):
        context = Context(model, {**sizes, "n_threads": given.threads, "n_threads_batch": given.threads})
    found: dict[str, list[float]] = {"whole head": [], "short head": [], "no head": []}
    for _ in range(given.repeats):
        for name, each in found.items():
            head.set_on(name == "short head")
            _core.clear_memory(context.pointer)
            for i in range(given.tokens):
                started = perf_counter()
                _core.decode(context.pointer, [i], i, name != "no head")
                _core.synchronize(context.pointer)
                if i > 0:  # The first one prepares its graph.
                    each.append(perf_counter() - started)
    whole = median(found["whole head"])
    lines = [
        f"{given.draft.name}: {head.n_rows} of {head.n_vocab} tokens, whole head {head.bytes / 2**20:.0f} of "
        f"{model.n_bytes / 2**20:.0f} MiB"
    ]
    lines += [
        f"  {name:11} {median(each) * 1e3:8.2f} ms a token [{min(each) * 1e3:.2f} to {max(each) * 1e3:.2f}], "
        f"{median(each) / whole:.2f} of the whole head's"
        for name, each in found.items()
    ]
    context.close()
    model.close()
    return "\n".join(lines)


def acceptance(given: argparse.Namespace) -> str:
    """Return a table of acceptance with both heads."""
    prompts = [
        json.loads(line)["turns"][0][:LONGEST]
        for path in sorted(given.prompts.glob("*.jsonl"))
        for line in path.read_text().splitlines()[: given.number]
    ]
    os.environ[env.DRAFT_HEAD.name] = str(given.rows)
    config = EngineConfig(
        target=given.target, draft=given.draft, device=given.device, draft_length=given.length, ctx=2048,
        state="off", sampling=SamplingConfig(temp=given.temp, seed=1, ignore_eos=True),
    )  # fmt: skip
    sums = {name: [0, 0] for name in ("short head", "whole head")}
    n_equal = unknown = noted = 0
    with Engine(config) as engine:
        head = engine._pair.draft_head
        if head is None:
            return f"{given.draft.name}: its head cannot be shortened to {given.rows} tokens"
        engine._head = None  # No rule switches it.
        for prompt in prompts:
            texts = []
            for name, total in sums.items():
                head.set_on(name == "short head")
                generation = engine.generate(prompt, given.text)
                first = next(generation, "")
                before = head.n_noted, head.n_learned
                texts.append(first + "".join(generation))
                total[0] += generation.stats.drafted_tokens
                total[1] += generation.stats.accepted_tokens
                if name == "short head":  # The second text has the same tokens, which are known by then.
                    noted += head.n_noted - before[0]
                    unknown += head.n_learned - before[1]
            n_equal += texts[0] == texts[1]
    lines = [f"  {name:11} acceptance {total[1] / max(1, total[0]):.1%}" for name, total in sums.items()]
    return "\n".join([
        f"{config.target}: {len(prompts)} prompts, {given.text} tokens each, drafts of {given.length}, "
        f"{head.n_rows} of {head.n_vocab} tokens; equal texts: {n_equal}", *lines,
        f"  unknown tokens of the texts: {unknown / max(1, noted):.2%}",
    ])  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--prompts", type=Path, help="folder of .jsonl files, a set each")
    parser.add_argument("--number", type=int, default=2, help="prompts of each set")
    parser.add_argument("--text", type=int, default=64, help="tokens of each text")
    parser.add_argument("--length", type=int, default=4, help="tokens of a draft")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=16384, help="tokens of the short head")
    parser.add_argument("--device", default="simulated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a repeat")
    given = parser.parse_args()
    print(where())
    print(times(given), flush=True)
    if given.target is not None and given.prompts is not None:
        print(acceptance(given))


if __name__ == "__main__":
    main()
