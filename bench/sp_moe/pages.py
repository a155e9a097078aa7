"""Make the page of a pair's recordings: SP-MoE's tables and figures as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bench.schedulers.replays import bound_of, pool_slots_of
from bench.sp_moe.machines import SETTINGS, VANILLA, Setting, ablation
from bench.sp_moe.recordings import recordings
from bench.step_time.simulation import Simulation, Spent
from spac import scheduler
from spac.scheduler import Scheduler
from spac.scheduler.demand import Demand
from spac.scheduler.lookahead_buffer import Fidelity
from spac.scheduler.sp_moe import SpMoeScheduler, critical_experts, cutoff_layer

SHARES = ("5%", "10%", "17%", "25%", "50%", "75%", "100%")
RIVALS = ("mixtral-offloading", "moe-infinity", "adapmoe", "lru", "logistic", "moe-spac", "sp-moe")


def page(args: argparse.Namespace) -> str:
    """Return the page of a folder of recordings."""
    facts = json.loads((args.folder / "facts.json").read_text())
    lengths = {name: _load(path, args.steps) for name, path in recordings(args.folder, "length")}
    sets = {name: _load(path, args.steps) for name, path in recordings(args.folder, "set")}
    one = lengths.get("1", next(iter(lengths.values())))
    share = f"{100 * one.layers[0].n_used / one.layers[0].n_expert:.3g}%"
    parts = [
        f"# SP-MoE: {facts['target']} with {facts['draft']}",
        f"Recorded by `{facts['command']}` ({facts['where']}): " + "; ".join(facts["record"]) + ".",
        "All figures are of replays. Times are predictions of a model of machines (`bench.step_time`). "
        "The paper measures GPUs with pairs of published models; here a low-bit copy of the target drafts. "
        "In the model, a miss does not wait behind prefetched experts, so more layers below the cutoff hurt "
        "less than in the paper.",
        alike(one, facts["likeness"]),
        hit_rates(sets, share),
    ]
    for setting in (each.scaled(len(one.layers)) for each in SETTINGS):
        parts += [f"## {setting.name}", *_timed(setting, one, lengths, share)]
    return "\n\n".join(parts)


def _timed(setting: Setting, one: Demand, lengths: dict[str, Demand], share: str) -> list[str]:
    return [
        memory(setting, one),
        steps_of_prefetching(setting, one, share),
        draft_lengths(setting, lengths, share),
        cutoffs(setting, one, share),
    ]


def _load(path: object, n_step: int) -> Demand:
    return Demand.load(path).part(slice(n_step))  # type: ignore[arg-type]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def alike(demand: Demand, likeness: Sequence[float]) -> str:
    """Return Fig. 7: how alike the states are, and how many experts of a token are predicted, by layer."""
    assert demand.routes is not None
    assert demand.draft_routes is not None
    n_used = demand.routes.shape[3]
    first = _top_shares(demand, 1)
    same = Fidelity.of(demand.draft_routes[..., :n_used], demand.routes).same
    twice = _top_shares(demand, 2 * n_used, recall=True)
    skipped = len(likeness) - len(demand.layers)  # layers without experts come first
    names = [str(i) for i in range(len(demand.layers))]
    rows = [
        ["cosine of the states (7a)", *(f"{x:.3f}" for x in likeness[skipped:])],
        ["the router's first is used (7b)", *(f"{x:.3f}" for x in first)],
        ["of a token's experts, among the best k", *(f"{x:.3f}" for x in same)],
        ["of a token's experts, among the best 2 k", *(f"{x:.3f}" for x in twice)],
    ]
    rows = [[row[0], f"{np.mean([float(x) for x in row[1:]]):.3f}", *row[1:]] for row in rows]
    return (
        "## Likeness of the states (Fig. 7)\n\nBy MoE layer; the mean of all comes first. The draft's states "
        f"are shown to the target's routers, k = {n_used}.\n\n" + table(["", "mean", *names], rows)
    )


def _top_shares(demand: Demand, n: int, *, recall: bool = False) -> list[float]:
    """Return by layer the share of the best `n` predicted experts that were used; or with `recall`, the share
    of the used ones that were predicted."""
    assert demand.routes is not None
    assert demand.draft_routes is not None
    found = []
    for layer in range(len(demand.layers)):
        hits = total = 0
        n_token = min(demand.routes.shape[2], demand.draft_routes.shape[2])
        for step in range(len(demand.counts)):
            for token in range(n_token):
                wanted = set(demand.routes[step, layer, token].tolist()) - {-1}
                shown = set(demand.draft_routes[step, layer, token, :n].tolist()) - {-1}
                if wanted and shown:
                    hits += len(wanted & shown)
                    total += len(wanted) if recall else len(shown)
        found.append(hits / max(1, total))
    return found


def hit_rates(sets: dict[str, Demand], share: str) -> str:
    """Return Table 3: hits of distinct experts by set of prompts, on the first setting."""
    rows: list[list[str]] = []
    setting = SETTINGS[0].scaled(len(next(iter(sets.values())).layers))
    for name in (*RIVALS, f"sp-moe:cutoff={len(next(iter(sets.values())).layers)}"):
        rates = [simulated(setting, demand, share, scheduler.make(name)).hit_rate for demand in sets.values()]
        rows.append([name, *(f"{rate:.1%}" for rate in rates), f"{np.mean(rates):.1%}"])
    best = [bound_of(demand, pool_slots_of(demand, share)).hit_rate_distinct for demand in sets.values()]
    rows.append(["Belady's bound", *(f"{rate:.1%}" for rate in best), f"{np.mean(best):.1%}"])
    return (
        f"## Hit rates (Table 3)\n\nDistinct experts that a step found resident, {share} of the experts in "
        f"slots (as many as a token uses), draft length 1, {setting.name}. `adapmoe` is without its loading "
        "inside a step. Belady's bound loads on demand; what loads before the demand can exceed it.\n\n"
        + table(["scheduler", *sets, "mean"], rows)
    )


def simulated(
    setting: Setting, demand: Demand, share: str, subject: Scheduler, *, waits: bool = False
) -> Spent:
    """Return what the second half of the steps takes. waits: see `Simulation.waits`."""
    n_slots = sum(pool_slots_of(demand, share))
    simulation = Simulation(setting.machine, setting.model, demand, n_slots)
    simulation.waits = waits
    return simulation.run(subject, len(demand.counts) // 2)


def _ms(spent: Spent) -> float:
    return 1e3 * spent.seconds / spent.tokens


def _cell(spent: Spent) -> str:
    return f"{_ms(spent):.1f} ({spent.hit_rate:.0%})"


def memory(setting: Setting, demand: Demand) -> str:
    """Return Fig. 11: the time per token by the share of experts in slots."""
    rows = [
        [name, *(_cell(simulated(setting, demand, share, scheduler.make(name))) for share in SHARES)]
        for name in ("static", "lru", "logistic", "sp-moe", f"sp-moe:cutoff={len(demand.layers)}")
    ]
    return (
        "### Memory (Fig. 11)\n\nMilliseconds per token, and hits of distinct experts, by the share of "
        "experts in slots; draft length 1.\n\n" + table(["scheduler", *SHARES], rows)
    )


def auto_cutoff(setting: Setting, demand: Demand, share: str) -> int:
    """Return the cutoff layer that section 3.2 gives on a machine."""
    slots = np.array(pool_slots_of(demand, share), np.int32)
    critical = critical_experts(demand.layers, None)
    return cutoff_layer(demand.layers, slots, critical, setting.machine.costs(setting.model))


def best_cutoff(setting: Setting, demand: Demand, share: str) -> int:
    """Return the cutoff layer with the least time per token."""
    return min(_cutoffs(demand), key=lambda n: _ms(_with_cutoff(setting, demand, share, n)))


def _with_cutoff(setting: Setting, demand: Demand, share: str, n: int) -> Spent:
    return simulated(setting, demand, share, scheduler.make("sp-moe", cutoff=n))


def _cutoffs(demand: Demand) -> list[int]:
    n_layer = len(demand.layers)
    return sorted({round(n_layer * part / 6) for part in range(7)})


def steps_of_prefetching(setting: Setting, demand: Demand, share: str) -> str:
    """Return Fig. 12: what each part of the prefetching brings, at the best cutoff layer."""
    cutoff = best_cutoff(setting, demand, share) or len(demand.layers)
    rows, base = [], 0.0
    for name, subject in (*ablation(cutoff).items(), (VANILLA, SpMoeScheduler(cutoff=cutoff))):
        spent = simulated(setting, demand, share, subject, waits=name == VANILLA)
        base = base or _ms(spent)
        rows.append([name, f"{_ms(spent):.2f}", f"{base / _ms(spent):.3f}", f"{spent.hit_rate:.1%}",
                     f"{spent.uploads / spent.steps:.1f}"])  # fmt: skip
    return (
        "### Ablation (Fig. 12)\n\nWhen predicted experts are copied. Draft length 1, "
        f"{share} slots, cutoff layer {cutoff}.\n\n"
        + table(["copies", "ms/token", "speed to no prefetching", "hits", "copies a step"], rows)
    )


def draft_lengths(setting: Setting, lengths: dict[str, Demand], share: str) -> str:
    """Return Fig. 13: the time per token by draft length."""
    names = (
        "static",
        "lru",
        "logistic",
        "sp-moe",
        f"sp-moe:cutoff={len(next(iter(lengths.values())).layers)}",
    )
    rows = [
        [name, *(_cell(simulated(setting, each, share, scheduler.make(name))) for each in lengths.values())]
        for name in names
    ]
    accepted = [each.accepted.sum() / max(1, (each.verified - 1).sum()) for each in lengths.values()]
    rows.append(["accepted", *(f"{rate:.0%}" for rate in accepted)])
    return f"### Draft length (Fig. 13)\n\nMilliseconds per token, and hits, {share} slots.\n\n" + table(
        ["scheduler", *lengths], rows
    )


def cutoffs(setting: Setting, demand: Demand, share: str) -> str:
    """Return Fig. 14: the time per token by cutoff layer."""
    chosen = _cutoffs(demand)
    found = [_with_cutoff(setting, demand, share, n) for n in chosen]
    figures: dict[str, Callable[[Spent], str]] = {
        "ms/token": lambda spent: f"{_ms(spent):.2f}",
        "hits": lambda spent: f"{spent.hit_rate:.1%}",
        "copies a step": lambda spent: f"{spent.uploads / spent.steps:.1f}",
    }
    rows = [[name, *(figure(spent) for spent in found)] for name, figure in figures.items()]
    return (
        f"### Cutoff layer (Fig. 14)\n\nDraft length 1, {share} slots. The equations of section 3.2 give "
        f"{auto_cutoff(setting, demand, share)} of {len(demand.layers)} layers.\n\n"
        + table(["cutoff layer", *map(str, chosen)], rows)
    )
