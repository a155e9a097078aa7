"""Run the pair on the simulated device with a slow link: the same text, hits, and when copies begin."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from bench.sp_moe.machines import ablation
from bench.sp_moe.pages import table
from bench.sp_moe.recordings import Prompt, config_of, prompts_of
from spac import _core
from spac.engine import Engine
from spac.errors import InternalError
from spac.scheduler import Scheduler
from spac.scheduler.sp_moe import SpMoeScheduler

FIGURES = ("hits of activations", "of distinct experts", "MB a step", "accepted")


class Run(NamedTuple):
    """Holds the text of a run and its figures."""

    text: str
    figures: list[str]
    token_ms: float


def live_page(args: argparse.Namespace) -> str:
    """Return a table of live runs by draft length and system."""
    _core.set_simulated_device(upload_gb_s=args.link / 1e3)
    try:
        return _page(args)
    finally:
        _core.set_simulated_device()


def _page(args: argparse.Namespace) -> str:
    prompts = [prompt for each in prompts_of(args).values() for prompt in each]
    parts = [_systems(args, prompts)]
    if args.repeat:
        parts.append(_cutoffs(args, prompts))
    return "\n\n".join(parts)


def _systems(args: argparse.Namespace, prompts: list[Prompt]) -> str:
    """Return the table of systems by draft length."""
    rows = []
    for length in args.lengths:
        for where, options in (("device", {}), ("CPU", {"gpu_layers_draft": 0})):
            texts = set()
            for name, subject in ablation(_n_layer(args)).items():
                run = _run(args, prompts, length, subject, options)
                texts.add(run.text)
                rows.append([str(length), where, name, *run.figures])
            if len(texts) > 1:
                raise InternalError(f"systems wrote different texts at draft length {length}")
    head = ["draft length", "draft on", "system", *FIGURES]
    return (
        f"# SP-MoE live: {args.target.name} with {args.draft.name}\n\nSimulated device, link {args.link:g} "
        f"MB/s, {args.slots} slots, --miss {args.miss}, {len(prompts)} prompts of {args.tokens} tokens, all "
        "layers below the cutoff. All systems with the same draft wrote the same text.\n\n"
        + table(head, rows)
    )


def _cutoffs(args: argparse.Namespace, prompts: list[Prompt]) -> str:
    """Return the table of cutoff layers (Fig. 14), measured in turns at the first draft length."""
    length, chosen = args.lengths[0], range(_n_layer(args) + 1)
    runs: dict[int, list[Run]] = {cutoff: [] for cutoff in chosen}
    for _ in range(args.repeat):
        for cutoff in chosen:
            runs[cutoff].append(_run(args, prompts, length, SpMoeScheduler(cutoff=cutoff), {}))
    if len({run.text for each in runs.values() for run in each}) > 1:
        raise InternalError("cutoff layers wrote different texts")
    base = np.median([run.token_ms for run in runs[0]])
    rows = []
    for cutoff, each in runs.items():
        times = [run.token_ms for run in each]
        middle = float(np.median(times))
        spread = f"{middle:.2f} [{min(times):.2f}, {max(times):.2f}]"
        rows.append([str(cutoff), spread, f"{base / middle:.3f}", *each[-1].figures])
    return (
        f"## Cutoff layer (Fig. 14)\n\nDraft length {length}, draft on the device; milliseconds per token, "
        f"median and range of {args.repeat} repeats in turns, and speed to cutoff 0.\n\n"
        + table(["cutoff layer", "ms/token", "speed", *FIGURES], rows)
    )


def _n_layer(args: argparse.Namespace) -> int:
    with Engine(config_of(args, 1, slots=1, scheduler="static")) as engine:
        assert engine.experts is not None
        return engine.experts.n_layer


def _run(
    args: argparse.Namespace, prompts: list[Prompt], length: int, subject: Scheduler, options: dict[str, Any]
) -> Run:
    """Return the text of all prompts, the figures, and the time of a token."""
    found = []
    options = {"slots": args.slots, "miss": args.miss, **options}
    with Engine(config_of(args, length, scheduler=subject, **options)) as engine:
        for prompt in prompts:
            generation = engine.generate(prompt, args.tokens)
            text = "".join(generation)
            found.append((text, generation.stats))
    stats = [each for _, each in found]
    means = [np.mean([getattr(each, name) for each in stats]) for name in ("hit_rate", "hit_rate_distinct")]
    moved = sum(each.bytes_moved["uploads"] for each in stats) / sum(each.steps for each in stats) / 1e6
    accepted = np.mean([each.acceptance for each in stats])
    figures = [*(f"{mean:.1%}" for mean in means), f"{moved:.2f}", f"{accepted:.0%}"]
    token_ms = 1e3 * sum(each.decode_s for each in stats) / sum(each.generated_tokens for each in stats)
    return Run("\n".join(text for text, _ in found), figures, token_ms)
