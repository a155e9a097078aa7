"""Record what the answers to many prompts use of a model's experts, in one file for `python -m bench`.

    python -m tools.record_answers OUT.npz MODEL [--prompts FILE.jsonl …] [--number N] [--tokens N]
        [--used N] [--draft FILE] [--draft-type TYPE] [--draft-length N] [--scheduler NAME] [--slots SHARE]

The model answers on the simulated device, in its chat format. The file has the experts of every token that it
wrote or verified; prompts are not recorded. Each answer is a text of its own (`Demand.texts`). A line of a
prompt file is a JSON object whose "turns" begin with the prompt. Without files, these are the questions of
`tools.split_dense`. With `--scheduler moe-speq`, the file also has what the draft's routers choose, and with
`sp-moe` what the target's routers choose for the draft.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError, SpacError
from spac.machine.arrays import Int32Array
from spac.model.gguf.check import check_model
from spac.replay import Demand
from spac.stats.recording import Recorder
from tools.split_dense.text import QUESTIONS

_SHOWN = 100
"""Characters of each answer that are printed."""


def prompts_of(files: Sequence[Path], number: int) -> list[str]:
    """Return the first `number` prompts of every file, or of the questions. Raise InputError for others."""
    if not files:
        return list(QUESTIONS[:number])
    try:
        lines = [line for path in files for line in path.read_text().splitlines()[:number]]
        return [str(json.loads(line)["turns"][0]) for line in lines]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f'prompts must be lines of JSON objects with "turns": {error}') from None


def record(config: EngineConfig, prompts: Sequence[str], n_token: int) -> Demand:
    """Return the demand of the answers of at most `n_token` tokens. Raise InputError if there is none."""
    parts = []
    with Engine(config) as engine:
        form, before = ChatFormat(engine.target), engine.experts.stats if engine.experts else {}
        for prompt in prompts:
            recorder = Recorder()
            _, tokens = engine.chat_prompt(form, [{"role": "user", "content": prompt}])
            text = "".join(engine.generate(tokens, n_token, recorder=recorder))
            print(f"{prompt[:40]!r}: {text[:_SHOWN]!r}", flush=True)
            if recorder.demand is not None:
                parts.append(recorder.demand)
        stats = engine.experts.stats if engine.experts else {}
    if not parts:
        raise InputError("no answer has a step of experts: the model needs experts, and answers some tokens")
    used = {name: stats[name] - before[name] for name in ("activations", "distinct", "uploads")}
    hits = {name: stats[f"{name}_hit"] - before[f"{name}_hit"] for name in ("activations", "distinct")}
    whole = joined(parts)
    print(
        f"{len(parts)} answers, {len(whole.counts)} steps, {int((whole.accepted + 1).sum())} tokens; hits of "
        f"activations {hits['activations'] / used['activations']:.1%}, of distinct experts "
        f"{hits['distinct'] / used['distinct']:.1%}, {used['uploads']} copies, prompts included"
    )
    return whole


def joined(parts: Sequence[Demand]) -> Demand:
    """Return the demand of all texts, numbered from 1 on."""
    texts = np.repeat(np.arange(1, len(parts) + 1), [len(part.counts) for part in parts])
    return replace(
        parts[0],
        counts=np.concatenate([part.counts for part in parts]),
        verified=np.concatenate([part.verified for part in parts]),
        accepted=np.concatenate([part.accepted for part in parts]),
        routes=_padded(parts, [part.routes for part in parts]),
        draft_routes=_padded(parts, [part.draft_routes for part in parts]),
        texts=texts.astype(np.int32),
        of_target=any(part.of_target for part in parts),
    )


def _padded(parts: Sequence[Demand], routes: Sequence[Int32Array | None]) -> Int32Array | None:
    """Return the routes of all texts, padded with -1 where one has fewer tokens or none; None without any."""
    none = [np.zeros((*part.counts.shape[:2], 0, 0), np.int32) for part in parts]
    known = [empty if each is None else each for each, empty in zip(routes, none, strict=True)]
    shape = np.max([each.shape[2:] for each in known], axis=0)
    if not shape.all():
        return None
    return np.concatenate([
        np.pad(each, [(0, 0), (0, 0), *((0, n) for n in shape - each.shape[2:])], constant_values=-1)
        for each in known
    ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.record_answers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("out", type=Path, metavar="OUT.npz")
    add("model", type=Path)
    add("--prompts", type=Path, nargs="+", default=[], metavar="FILE.jsonl")
    add("--number", type=int, default=10, help="prompts of each file")
    add("--tokens", type=int, default=96, help="tokens of an answer at most")
    add("--used", type=int, help="experts that a token uses, in place of the file's number; of a draft too")
    add("--draft", type=Path)
    add("--draft-type")
    add("--draft-length", type=int, default=8)
    add("--scheduler", default="none")
    add("--slots", default="17%")
    add("--ctx", type=int, default=2048)
    add("--temp", type=float, default=0.8)
    add("--repeat-penalty", type=float, default=1.0)
    args = parser.parse_args(argv)
    try:
        name = check_model(args.model).architecture
        override = {} if args.used is None else {f"{name}.expert_used_count": args.used}
        sampling = SamplingConfig(temp=args.temp, repeat_penalty=args.repeat_penalty, seed=1)
        config = EngineConfig(
            target=args.model, draft=args.draft, draft_type=args.draft_type, draft_length=args.draft_length,
            device="simulated", slots=args.slots, scheduler=args.scheduler, state="off", ctx=args.ctx,
            threads=1, threads_batch=1, override_kv=override, sampling=sampling,
        )  # fmt: skip
        record(config, prompts_of(args.prompts, args.number), args.tokens).save(args.out)
    except (SpacError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
