"""Record a pair: what its verifications used, what the target's routers chose for the draft, and both's
states."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablation.live import read_prompts
from spac import scheduler
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.arrays import Float32Array
from spac.model.c_api import Context, Model
from spac.scheduler.demand import Recorder
from tools.eval_callback import Callback, api, decode

Prompt = str | list[int]
TIMES = 3  # recorded experts of a token, per expert that it uses
STATES = "ffn_norm"  # llama.cpp's name of what enters a layer's FFN, in the architectures of the pairs


def prompts_of(args: argparse.Namespace) -> dict[str, list[Prompt]]:
    """Return the prompts by set."""
    if args.prompts is None:
        return {"chain": [[997 * text + 5] for text in range(args.number)]}
    paths = sorted(args.prompts.glob("*.jsonl"))
    if not paths:
        raise ValueError(f"{args.prompts} has no .jsonl files")
    return {path.stem: [*read_prompts(path, 0, args.number)] for path in paths}


def config_of(args: argparse.Namespace, length: int, **options: Any) -> EngineConfig:
    """Return the configuration of a greedy run on the simulated device."""
    return EngineConfig(
        target=args.target, draft=args.draft, draft_length=length, device="simulated", governor="fixed",
        ctx=1024, threads=args.threads, state="off",
        sampling=SamplingConfig(temp=0.0, ignore_eos=True), **options,
    )  # fmt: skip


def record(args: argparse.Namespace) -> str:
    """Write the recordings to the folder. Return what was recorded."""
    args.folder.mkdir(parents=True, exist_ok=True)
    sets, lines = prompts_of(args), []
    for length in args.lengths:
        recorder = Recorder(scheduler.make("static"), target_routes=TIMES)
        ends = [0]
        with Engine(config_of(args, length, slots=1, scheduler=recorder)) as engine:
            for prompts in sets.values():
                for prompt in prompts:
                    "".join(engine.generate(prompt, args.tokens))
                ends.append(len(recorder.demand.counts))
        whole = recorder.demand
        whole.save(args.folder / f"length-{length}.npz")
        for i, name in enumerate(sets if length == 1 else ()):
            whole.part(slice(ends[i], ends[i + 1])).save(args.folder / f"set-{name}.npz")
        accepted = whole.accepted.sum() / max(1, (whole.verified - 1).sum())
        lines.append(f"draft length {length}: {len(whole.counts)} steps, {accepted:.0%} accepted")
    alike = likeness(args.target, args.draft, [prompt for each in sets.values() for prompt in each[:1]])
    facts = {"target": args.target.name, "draft": args.draft.name, "likeness": alike, "record": lines,
             "command": args.command_line, "where": args.where}  # fmt: skip
    (args.folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    return "\n".join(lines)


def likeness(target: Path, draft: Path, prompts: list[Prompt], n_token: int = 48) -> list[float]:
    """Return the cosine similarity of both models' states by layer, the mean over the prompts' tokens.

    A prompt of one token goes on with the target's best tokens.
    """
    both = (_States(target), _States(draft))
    found = []
    for prompt in prompts:
        tokens = both[0].tokens(prompt)[:n_token] or [0]
        for each in both:
            each.begin()
        for _ in range(n_token):
            token = tokens.pop(0)
            rows, logits = both[0].after(token)
            others, _ = both[1].after(token)
            norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
            found.append((rows * others).sum(axis=1) / norms)
            tokens = tokens or [int(logits.argmax())]
    for each in both:
        each.close()
    return [round(float(value), 4) for value in np.mean(found, axis=0)]


class _States:
    """A model on the CPU alone that shows its states."""

    def __init__(self, path: Path) -> None:
        self._callback = Callback(STATES)
        self._model = Model(path, (), {})
        params = {"n_ctx": 256, "n_batch": 64, "cb_eval": self._callback.address}
        self._context = Context(self._model, {**params, "n_threads": 1, "n_threads_batch": 1})
        self._n = 0

    def tokens(self, prompt: Prompt) -> list[int]:
        return self._model.tokenize(prompt).tolist() if isinstance(prompt, str) else list(prompt)

    def begin(self) -> None:
        api.llama_memory_seq_rm(api.llama_get_memory(self._context.pointer), 0, 0, -1)
        self._n = 0

    def after(self, token: int) -> tuple[Float32Array, Float32Array]:
        """Return the states of a token, float32 [D, E], and the logits behind it."""
        logits = decode(self._context, [token], self._n)
        self._n += 1
        seen = self._callback.seen
        return np.stack([seen[STATES, il] for il in range(len(seen))]), logits

    def close(self) -> None:
        self._context.close()
        self._model.close()


def recordings(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of recordings, shortest drafts first."""
    found = {path.stem.partition("-")[2]: path for path in folder.glob(f"{pattern}-*.npz")}
    if not found:
        raise ValueError(f"{folder} has no recordings: run `record` first")
    yield from sorted(
        found.items(), key=lambda each: (len(each[0]), each[0]) if pattern == "length" else each
    )
