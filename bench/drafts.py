"""Show what drafts yield and which experts their windows use, from recordings: the papers' Figures 4 to 7.

A FILE is a recording of `python -m tools.record_answers` or `spac run --record`, or a trace
(docs/schedulers.md), which has no drafts.

Acceptance: the share of the first n drafted tokens that was accepted, and the tokens of a step if it verifies
n drafted tokens at most. It assumes that a shorter draft begins with the same tokens.

Windows (MoE-SpAc's Figure 7, SP-MoE's Figure 2): the distinct experts of n + 1 tokens in a row, as a multiple
of those of one token. A recording's windows are those that it verified, with rejected tokens. Ω is the number
of tokens that a draft of n yields with an acceptance of 0.8 (Eq. 1). A draft saves expert work where a step's
tokens are more than the multiple (Eq. 17).

Routes (MoE-SpeQ's Figure 5): the entropy of a layer's use of its experts, as a share of the largest one, over
the layers; the share of a token's experts that the token before it used too, and what chance gives.

Foretold (MoE-SpeQ's Figure 6, SP-MoE's Figure 7b): routers' choices for the draft, beside the experts of the
verified token. named: the share of its experts that are among them. right: the share of them that it uses.
first: how often the best one is used. same set, same order: of tokens and layers.

Hot or cold (MoE-SpAc's Figure 4): how often utility >= 1 foretold that the next step uses an expert, or that
it does not; `always` is the accuracy of the better of the two constant answers. windows: steps as recorded.
tokens: the accepted tokens, each a step of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.page import output, publish, table
from bench.schedulers.judge import between
from bench.schedulers.trace import Trace
from spac import scheduler
from spac.machine.arrays import BoolArray, Int32Array
from spac.papers.moe_spac import MoeSpacScheduler
from spac.replay import Demand, replay
from spac.scheduler import Event, Plan, Scheduler, View

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
ALPHA = 0.8
UTILITIES = ("moe-spac:paper", "moe-spac")


class Watched(Scheduler):
    """Passes all events to MoE-SpAc, and compares each step's demand with the utilities before it."""

    name = "watched"

    def __init__(self, inner: MoeSpacScheduler) -> None:
        self._inner = inner
        self.wants_routes = inner.wants_routes  # type: ignore[misc]
        self.right: list[float] = []
        self.used: list[float] = []

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the inner scheduler's plan."""
        if event == Event.VERIFY_END and view.step:
            used = view.demand > 0
            self.right.append(float(np.mean((self._inner.utility >= 1) == used)))
            self.used.append(float(used.mean()))
        return self._inner.on(event, view)


def used_by(routes: Int32Array, n_expert: int) -> BoolArray:
    """Return the experts of every token, bool [S, L, T, N]. routes: int32 [S, L, T, U], -1 for none."""
    found = np.zeros((*routes.shape[:3], n_expert), np.bool_)
    at = np.nonzero(routes >= 0)
    found[(*at[:3], routes[at])] = True
    return found


def acceptance(demand: Demand) -> dict[str, list[float]]:
    """Return the accepted share of the first n drafted tokens, and the tokens of a step, by length."""
    drafted, accepted = demand.verified - 1, demand.accepted
    return {
        "share": [np.minimum(accepted, n).sum() / max(1, np.minimum(drafted, n).sum()) for n in LENGTHS],
        "tokens": [1 + np.minimum(accepted, n).mean() for n in LENGTHS],
    }


def multiples(demand: Demand) -> list[float]:
    """Return the distinct experts of n + 1 tokens as a multiple of one token's, by length; NaN for none."""
    assert demand.routes is not None
    used, distinct = used_by(demand.routes, demand.counts.shape[2]), []
    for n in (0, *LENGTHS):
        long = demand.verified > n
        windows = used[long, :, : n + 1].any(axis=2)
        distinct.append(windows.sum() / len(windows) if len(windows) else np.nan)
    return [float(each / distinct[0]) for each in distinct[1:]]


def spread_of_routes(trace: Trace) -> dict[str, float]:
    """Return the entropies of the layers' use, and the share of a token's experts that are kept."""
    used = used_by(trace.experts[None].transpose(0, 2, 1, 3), trace.n_expert)[0]  # [L, T, N]
    share = used.mean(axis=1) / used.mean(axis=1).sum(axis=1, keepdims=True)
    entropy = -(share * np.log(np.maximum(share, 1e-12))).sum(axis=1) / np.log(trace.n_expert)
    first = np.zeros(used.shape[1], np.bool_)
    first[np.cumsum(trace.seq_len)[:-1]] = True
    both = (used[:, 1:] & used[:, :-1])[:, ~first[1:]].sum()
    return {
        "entropy": float(entropy.mean()), "least": float(entropy.min()), "most": float(entropy.max()),
        "kept": float(both / used[:, 1:][:, ~first[1:]].sum()),
        "chance": float((used.mean(axis=1) ** 2).sum() / used.mean(axis=1).sum()),
    }  # fmt: skip


def foretold(demand: Demand) -> dict[str, float]:
    """Return how the recorded choices of routers for the draft compare with the verified tokens' experts."""
    assert demand.routes is not None
    assert demand.draft_routes is not None
    n_token, n_used = min(demand.routes.shape[2], demand.draft_routes.shape[2]), demand.routes.shape[3]
    named, real = demand.draft_routes[:, :, :n_token, :n_used], demand.routes[:, :, :n_token]
    known = (named >= 0).any(axis=3) & (real >= 0).any(axis=3)
    named, real = named[known][:, None, None], real[known][:, None, None]  # [tokens and layers, 1, 1, U]
    n_expert = demand.counts.shape[2]
    both = used_by(named, n_expert) & used_by(real, n_expert)
    first = named[..., :1]
    equal = both.sum(axis=3) == n_used
    same = (named == real).all(axis=3) if named.shape == real.shape else np.zeros_like(equal)
    return {
        "named": float(both.sum() / (real >= 0).sum()), "right": float(both.sum() / (named >= 0).sum()),
        "first": float((real == first).any(axis=3).mean()), "set": float(equal.mean()),
        "order": float(same.mean()),
    }  # fmt: skip


def hot_or_cold(name: str, demand: Demand) -> tuple[float, float]:
    """Return the accuracy of utilities in the second half of the steps, and that of a constant answer."""
    made = scheduler.make(name)
    assert isinstance(made, MoeSpacScheduler)
    watched = Watched(made)
    replay(watched, demand, demand.counts[0].size // 6, costs=between(demand))
    half = len(watched.right) // 2
    used = float(np.mean(watched.used[half:]))
    return float(np.mean(watched.right[half:])), max(used, 1 - used)


def figures(path: Path) -> dict[str, Any]:
    """Return all figures of a file; a trace has no drafts."""
    trace = Trace.load(path)
    with np.load(path, allow_pickle=False) as file:
        recorded = "counts" in file
    found: dict[str, Any] = {"name": path.stem, "tokens": len(trace.experts)} | spread_of_routes(trace)
    single = trace.demand(1)
    demand = Demand.load(path) if recorded else single
    if (demand.verified > 1).any():
        found |= {"steps": len(demand.counts), "acceptance": acceptance(demand)}
        found["multiples"] = multiples(demand)
    else:
        found["multiples"] = [multiples(trace.demand(n + 1))[n - 1] for n in LENGTHS]
    if demand.draft_routes is not None:
        found["foretold"] = foretold(demand) | {"of": "target" if demand.of_target else "draft"}
    for name in UTILITIES:
        accuracy = {"tokens": hot_or_cold(name, single)}
        if "acceptance" in found:
            accuracy["windows"] = hot_or_cold(name, demand)
        found.setdefault("accuracy", {})[name] = accuracy
    return found


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the tables of all files."""
    numbers, drafted = [str(n) for n in LENGTHS], [row for row in rows if "acceptance" in row]
    omega = ["Ω(n, 0.8)", *(f"{(1 - ALPHA ** (n + 1)) / (1 - ALPHA):.2f}" for n in LENGTHS)]

    def lines(rows: Sequence[dict[str, Any]], form: str, *keys: str) -> list[list[str]]:
        return [[row["name"], *(format(each, form) for each in _at(row, keys))] for row in rows]

    routes = ("entropy", "least", "most", "kept", "chance")
    names = ("named", "right", "first", "set", "order")
    told = [row for row in rows if "foretold" in row]
    parts = {
        "Acceptance of the first n tokens": table(
            ("recording", *numbers), lines(drafted, ".1%", "acceptance", "share")
        ),
        "Tokens of a step": table(("recording", *numbers), lines(drafted, ".2f", "acceptance", "tokens")),
        "Windows": table(("recording", *numbers), [omega, *lines(rows, ".2f", "multiples")]),
        "Routes": table(
            ("recording", "tokens", "entropy", "least", "most", "kept", "by chance"),
            [[row["name"], f"{row['tokens']:,}", *(f"{row[key]:.3f}" for key in routes)] for row in rows],
        ),
        "Foretold": table(
            ("recording", "routers", "named", "right", "first", "same set", "same order"),
            [
                [row["name"], row["foretold"]["of"], *(f"{row['foretold'][key]:.1%}" for key in names)]
                for row in told
            ],
        ),
        "Hot or cold": table(
            ("recording", "utilities", "windows", "always", "tokens", "always"),
            [
                [row["name"], name, *_pair(found.get("windows")), *_pair(found["tokens"])]
                for row in rows
                for name, found in row["accuracy"].items()
            ],
        ),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items() if text.count("\n") > 1)


def _pair(found: tuple[float, float] | None) -> list[str]:
    return ["", ""] if found is None else [f"{each:.3f}" for each in found]


def _at(row: dict[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        row = row[key]
    return row


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.npz")
    output(parser)


def run(args: argparse.Namespace) -> None:
    rows = [figures(path) for path in args.files]
    publish(args, "Drafts and the experts of their windows", page(rows), rows)
