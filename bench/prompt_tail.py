"""Replay what a prompt's last tokens are worth to a scheduler: `python -m bench.prompt_tail TRACE.npz`.

The trace has the experts of every token of many texts (`spac run --trace`, `bench.schedulers.convert`). The
first 64 tokens of each text stand for its prompt, and the scheduler sees none of them, or its last ones, as
`Driver.saw_prompt` shows them. Then tokens are decoded one by one, with a number of copies between two of
them. The slots keep what they have between texts.

`python -m bench.prompt_tail --prompts FOLDER` runs the bundled pair's target live instead, on the simulated
device: prompts of every set (a .jsonl file each) in turn, once with a scheduler that sees their tails and
once with one that does not. The plan's copies end before each step, and texts are compared. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.provenance import commit
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.arrays import Int32Array
from spac.scheduler import SchedulerChoice, make
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.replay import _Slots as Slots

PROMPT, FIRST, DECODED = 64, 32, 76
"""Tokens of a text: its prompt, those whose hits are compared, and all that are decoded."""
TAILS = (0, 8, 16, 32)
LONGEST = 2000
"""The most characters of a prompt that are used."""
SKIPPED = 10
"""Texts at the start, from which the scheduler learns and whose hits are not counted."""


def texts_of(path: Path) -> tuple[list[Int32Array], int]:
    """Return each long text's experts, int32 [T, L, U], and the number of experts of a layer."""
    with np.load(path) as file:
        experts, ends = file["experts"].astype(np.int32), np.cumsum(file["seq_len"])
        texts = np.split(experts, ends[:-1])
        return [text for text in texts if len(text) >= PROMPT + DECODED], int(file["n_expert"])


class Decoder:
    """Decodes texts with one scheduler, whose slots and plan persist."""

    def __init__(self, scheduler: str, shape: tuple[int, int], share: float, copies: int) -> None:
        """Begin with empty slots for `share` of the experts; shape: layers and experts of each."""
        n_layer, n_expert = shape
        layers = tuple(Layer(f"blk.{i}", n_expert, 1, 1, 0) for i in range(n_layer))
        n_slots = round(share * n_layer * n_expert)
        self._scheduler, self._copies = make(SchedulerChoice.parse(scheduler)), copies
        self.slots = Slots(layers, [n_slots], n_expert)
        self._view = View(
            layers, np.array([n_slots], np.int32), self.slots.slot_of, np.zeros(shape, np.int32)
        )
        self._plan = Plan.nothing(*shape)
        self._follow(self._scheduler.on(Event.START, self._view))

    def _follow(self, plan: Plan | None) -> None:
        self._plan = plan.over(self._plan) if plan is not None else self._plan

    def show(self, token: Int32Array) -> Int32Array:
        """Show the scheduler the experts of one token, int32 [L, U], and return its demand, int32 [L, N]."""
        demand = np.zeros_like(self._view.demand)
        np.add.at(demand, (np.arange(len(token))[:, None], token), 1)
        routes = np.ascontiguousarray(token[:, None, :]) if self._scheduler.wants_routes else None
        view = replace(self._view, demand=demand, n_verified=1, routes=routes)
        self._follow(self._scheduler.on(Event.VERIFY_END, view))
        return demand

    def decode(self, tokens: Int32Array) -> Iterator[float]:
        """Decode tokens, int32 [T, L, U], and yield the share of each one's activations that are hits."""
        for token in tokens:
            self.slots.settle(self._plan, 0, self._copies)
            resident = self.slots.slot_of >= 0
            demand = self.show(token)
            self.slots.use(demand)
            yield float(demand[resident].sum() / demand.sum())


def replay(texts: Sequence[Int32Array], decoder: Decoder, tail: int, *, other: bool) -> dict[str, float]:
    """Return the hit rates of the first and of the later tokens, and copies per token of the first ones.

    other: show each text the tail of another text, which tells nothing of it.
    """
    first, later, copies = [], [], []
    for index, text in enumerate(texts):
        shown = texts[(index + len(texts) // 2) % len(texts)] if other else text
        for token in shown[PROMPT - tail : PROMPT]:
            decoder.show(token)
        rates, begun = [], decoder.slots.uploads
        for done, rate in enumerate(decoder.decode(text[PROMPT : PROMPT + DECODED])):
            rates.append(rate)
            if done + 1 == FIRST:
                copies.append((decoder.slots.uploads - begun) / FIRST)
        first.append(np.mean(rates[:FIRST]))
        later.append(np.mean(rates[FIRST:]))
    means = (float(np.mean(each[SKIPPED:])) for each in (first, later, copies))
    return dict(zip(("first_hit_rate", "later_hit_rate", "copies_per_token"), means, strict=True))


class Blind(LogisticScheduler):
    """The scheduler of before, which sees no prompts."""

    sees_prompts = False


def live(
    prompts: Sequence[str], scheduler: Scheduler, share: float
) -> tuple[dict[str, float], list[list[int]]]:
    """Return the figures of the bundled pair's target, and the tokens that it generates."""
    config = EngineConfig(
        target=demo.TARGET, device="simulated", slots=share, ctx=2048, state="off", deterministic=True,
        stream_batch=0, sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip
    rates, copies, texts = list[float](), list[float](), list[list[int]]()
    with Engine(config) as engine:
        assert engine.experts is not None
        engine.set_scheduler(scheduler)
        for prompt in prompts:
            before = engine.experts.stats["uploads"]
            generation = engine.generate(prompt, FIRST)
            for _piece in generation:
                pass
            rates.append(generation.stats.hit_rate)
            copies.append((engine.experts.stats["uploads"] - before) / FIRST)
            texts.append(generation.tokens)
    means = (float(np.mean(each[SKIPPED:])) for each in (rates, copies))
    return dict(zip(("first_hit_rate", "copies_per_token"), means, strict=True)), texts


def live_rows(folder: Path, shares: Sequence[float], number: int) -> list[dict[str, Any]]:
    """Return the figures of the bundled pair with and without tails, with `number` prompts of every set."""
    sets = [
        [json.loads(line)["turns"][0][:LONGEST] for line in path.read_text().splitlines()[:number]]
        for path in sorted(folder.glob("*.jsonl"))
    ]
    prompts = [prompt for each in zip(*sets, strict=True) for prompt in each]
    rows: list[dict[str, Any]] = []
    print(f"{len(prompts)} prompts\nslots  tail  hits of {FIRST} tokens  copies per token")
    for share in shares:
        texts = []
        for tail, scheduler in ((0, Blind()), (TAILS[-1], LogisticScheduler())):
            figures, found = live(prompts, scheduler, share)
            texts.append(found)
            rows.append({"slots": share, "tail": tail} | figures)
            rate, copies = figures.values()
            print(f"{share:5g}  {tail:4d}  {rate:17.3f}  {copies:16.1f}", flush=True)
        if texts[0] != texts[1]:
            raise SystemExit("the texts differ")
    return rows


def trace_rows(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of a trace, for all lengths of the tail."""
    texts, n_expert = texts_of(given.trace)
    texts = texts[: given.texts]
    rows: list[dict[str, Any]] = []
    print(f"slots  tail  hits of {FIRST} tokens  of later ones  copies per token")
    for share in given.slots:
        for tail in TAILS:
            decoder = Decoder(given.scheduler, (texts[0].shape[1], n_expert), share, given.copies)
            row = {"slots": share, "tail": tail} | replay(texts, decoder, tail, other=given.other)
            rows.append(row)
            print(
                f"{share:5g}  {tail:4d}  {row['first_hit_rate']:17.3f}  {row['later_hit_rate']:13.3f}  "
                f"{row['copies_per_token']:16.1f}",
                flush=True,
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay all lengths of the tail, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--prompts", type=Path, help="folder of .jsonl files, for the bundled pair instead")
    parser.add_argument("--number", type=int, default=6, help="prompts of each set")
    parser.add_argument("--scheduler", default="logistic")
    parser.add_argument("--slots", type=float, nargs="+", default=[0.17, 0.25, 0.5], help="shares of experts")
    parser.add_argument("--copies", type=int, default=16, help="most copies between two tokens")
    parser.add_argument("--texts", type=int, default=60, help="texts to decode, the first 10 uncounted")
    parser.add_argument("--other", action="store_true", help="show the tails of other texts")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    given = parser.parse_args(arguments)
    if (given.trace is None) == (given.prompts is None):
        parser.error("give a trace, or --prompts")
    rows = live_rows(given.prompts, given.slots, given.number) if given.prompts else trace_rows(given)
    if given.out is not None:
        command = shlex.join(["python", "-m", "bench.prompt_tail", *(arguments or sys.argv[1:])])
        about = {"command": command, "commit": commit()}
        given.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
