"""Measure how well a trained prediction layer (MTP) foretells the experts of the next token.

MODEL is a file of `python -m tools.split_dense --mtp`. It continues texts that it does not know, in torch.
Before each token is evaluated, these are known:

history  what the scheduler `logistic` makes of all earlier routes, its probability
token    the token itself: the share of its earlier uses that used an expert
routers  the prediction layer's state of this token, shown to the target's routers as it is (SP-MoE)
probe    the same state, from which ridge regression estimates what each router chooses
routes   the prediction layer's experts: the share of the tokens with such an expert that used one of a layer
earlier  the history without the last token, as it is when this token is drafted
drafted  the share of the drafted token's earlier uses, whether or not it is the one that comes

A logistic regression for each layer joins the signals of each row. The probe is fitted on two fifths of the
texts and the regressions on the next fifth. The rows have the rest. Recall is the share of a token's experts
among the most probable ones of their layer. Hits are those of a replay that keeps the most probable experts,
as shares of Belady's, with all copies done before the token, or 32 or 8 of them. Belady's loads on demand,
so that a right prediction can surpass it. The margin that a resident expert has over others is the best of
three in each cell.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bench.page import output, publish, table
from bench.schedulers.belady import belady
from bench.schedulers.judge import between
from bench.schedulers.trace import Trace
from spac.errors import InputError
from spac.replay import replay
from spac.scheduler.base import Event, Plan, Scheduler, View
from spac.scheduler.ewma import best_per_pool
from spac.scheduler.logistic import LogisticScheduler

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = (
    ("history",), ("history", "token"), ("history", "token", "routers"), ("history", "token", "probe"),
    ("history", "token", "routes"), ("history", "probe"), ("history", "token", "routers", "probe", "routes"),
    ("earlier",), ("earlier", "drafted"),
)  # fmt: skip
SLOTS, COPIES, START = (0.17, 0.5), (None, 32, 8), 24
MARGINS, RIDGES = (0.05, 0.15, 0.3), (0.03, 0.3, 3.0)
_SHRINK, _FLOOR = 2.0, 1e-3


class Watched(LogisticScheduler):
    """The scheduler `logistic`, which notes its probabilities for each next step."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Array] = []

    def on(self, event: Event, view: View) -> Plan | None:
        plan = super().on(event, view)
        if event == Event.VERIFY_END:
            self.noted.append(self.probability.copy())
        return plan


class Told(Scheduler):
    """Keeps the experts that are the most probable by given numbers, [T, L, N], for each next step."""

    name = "told"

    def __init__(self, probability: Array, margin: float) -> None:
        self._told, self._margin = probability, margin

    def on(self, event: Event, view: View) -> Plan | None:
        step = 0 if event == Event.START else view.step + 1
        if step == len(self._told):
            return None
        worth = self._told[step] + self._margin * (view.slot_of >= 0)
        return Plan(worth, best_per_pool(worth, view))


def odds(share: Array) -> Array:
    """Return the logarithm of the odds."""
    return np.log((share + _FLOOR) / (1 - share + _FLOOR))


def lifts(signs: Array, used: Array, shown: Array | None = None) -> Array:
    """Return the lift of each token's experts by its signs over their share so far, [T, L, N].

    signs: what is true of each token, int [T, S]. used: bool [T, L, N]. A sign's share counts all earlier
    tokens that had it. shown: the signs that are believed before the token is known.
    """
    n_sign = int(max(each.max() for each in (signs, signs if shown is None else shown))) + 1
    sums, seen = np.zeros((n_sign, *used.shape[1:]), np.float32), np.zeros(n_sign, np.float32)
    total, found = np.zeros(used.shape[1:], np.float32), np.empty(used.shape, np.float32)
    for step, (asked, own, now) in enumerate(
        zip(signs if shown is None else shown, signs, used, strict=True)
    ):
        popular = (total + 0.4) / (step + 1)
        share = (sums[asked] + _SHRINK * popular) / (seen[asked] + _SHRINK)[:, None, None]
        found[step] = odds(share.mean(0)) - odds(popular)
        sums[own] += now
        seen[own] += 1
        total += now
    return found


def fitted(features: Array, used: Array, part: slice) -> Array:
    """Return probabilities [T, L, N] by features [F, T, L, N], each layer fitted on a part of the tokens."""
    x = np.concatenate([features, np.ones_like(features[:1])])
    found = np.empty(used.shape)
    for layer in range(used.shape[1]):
        own, wanted = x[:, part, layer].reshape(len(x), -1).astype(np.float64), used[part, layer].ravel()
        weights = np.zeros(len(x))
        for _ in range(8):  # Newton's steps
            p = 1 / (1 + np.exp(-weights @ own))
            curve = (own * (p * (1 - p))) @ own.T + 1e-6 * np.eye(len(x))
            weights -= np.linalg.solve(curve, own @ (p - wanted))
        found[:, layer] = 1 / (1 + np.exp(-np.tensordot(weights, x[:, :, layer], 1)))
    return found


def probed(states: Array, used: Array, first: int, second: int) -> Array:
    """Return what ridge regression on the first tokens makes of states [T, d], [T, L, N].

    The penalty is the one with the least error on the tokens from `first` to `second`.
    """
    x = np.concatenate([states, np.ones_like(states[:, :1])], 1)
    wanted = used.reshape(len(used), -1)
    gram, sums = x[:first].T @ x[:first], x[:first].T @ wanted[:first]
    mean = np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
    found = [x @ np.linalg.solve(gram + ridge * mean, sums) for ridge in RIDGES]
    best = min(found, key=lambda each: float(np.square(each[first:second] - wanted[first:second]).sum()))
    return best.reshape(used.shape)


def recall(probability: Array, used: Array, n: int) -> float:
    """Return the share of the used experts that are among the `n` most probable ones of their layer."""
    best = np.argpartition(-probability, n - 1, axis=-1)[..., :n]
    return float(np.take_along_axis(used, best, -1).sum() / used.sum())


def signals(args: argparse.Namespace) -> tuple[Trace, Array, dict[str, Array], list[float]]:
    """Return the routes, used experts and signals [T, L, N], and the shares of right drafts."""
    try:
        import torch
    except ImportError as error:
        raise InputError(f"the model is computed with torch: pip install torch==2.13.0 ({error})") from None

    from spac.model.c_api import Model
    from tools.split_dense import prediction
    from tools.split_dense.network import Split
    from tools.split_dense.text import HELD_OUT, QUESTIONS, chat_prompt, docstrings

    torch.set_num_threads(args.threads)
    model, tokenizer = Split(args.model), Model(args.model, (), {"vocab_only": True})
    if model.prediction is None:
        raise InputError(f"{args.model} has no prediction layer: make one with `tools.split_dense --mtp`")
    read = [tokenizer.tokenize(text)[:START].tolist() for text in docstrings(HELD_OUT)[::3]]
    asked = [tokenizer.tokenize(chat_prompt(text)).tolist() for text in QUESTIONS[::2]]
    tokenizer.close()
    prompts = [text for pair in zip(read, asked, strict=False) for text in pair][: args.texts]
    text = model.write(prompts, args.length, torch.full((len(prompts),), 0.8), 99)
    with torch.no_grad():
        states, own, _ = prediction.predict(model, model.prediction, text)
    agreed = prediction.agreement(model, model.prediction, text)
    n_text, length = text.tokens[:, 1:].shape
    routes = text.routes[:, 1:].numpy().reshape(n_text * length, len(model.layers), -1).astype(np.int32)
    used = np.zeros((*routes.shape[:2], model.n_expert), np.float32)
    np.put_along_axis(used, routes, 1, -1)
    trace = Trace(routes, np.full(n_text, length, np.int32), model.n_expert, 1)
    first, second = parts(n_text, length)
    watched, demand = Watched(), trace.demand()
    replay(watched, demand, int(0.5 * used[0].size), costs=between(demand))
    nothing = np.full_like(watched.noted[0], 0.4)
    history = odds(np.stack([nothing, *watched.noted[:-1]]))
    flat = states.float().reshape(-1, states.shape[-1])
    plain = flat / model.prediction["nextn.shared_head_norm"]
    scores = np.stack(
        [((plain * w["post_attention_norm"]) @ w["ffn_gate_inp"].T).numpy() for w in model.layers], 1
    )  # fmt: skip
    tokens = text.tokens[:, 1:]
    drafted = torch.cat([tokens[:, :1], (states[:, :-1] @ model.head.T).argmax(-1)], 1)
    return trace, used, {
        "history": history, "token": lifts(tokens.reshape(-1, 1).numpy(), used),
        "routers": (scores - scores.mean(-1, keepdims=True)) / scores.std(-1, keepdims=True),
        "probe": probed(flat.numpy(), used, first, second),
        "routes": lifts(own.reshape(len(flat), -1).numpy(), used),
        "earlier": np.concatenate([history[:1], history[:-1]]),
        "drafted": lifts(tokens.reshape(-1, 1).numpy(), used, drafted.reshape(-1, 1).numpy()),
    }, agreed  # fmt: skip


def parts(n_text: int, length: int) -> tuple[int, int]:
    """Return how many tokens the probe is fitted on, and where those of the regressions end."""
    return n_text * 2 // 5 * length, n_text * 3 // 5 * length


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a split model with a prediction layer")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=400, help="tokens of a text")
    parser.add_argument("--threads", type=int, default=2)
    output(parser)


def run(args: argparse.Namespace) -> None:
    trace, used, known, agreed = signals(args)
    first, second = parts(len(trace.seq_len), int(trace.seq_len[0]))
    tested = used[second:]
    n_used = trace.experts.shape[2]
    demand = Trace(
        trace.experts[second:], trace.seq_len[len(trace.seq_len) * 3 // 5 :], trace.n_expert, 1
    ).demand()
    n_slots = [int(share * used[0].size) for share in SLOTS]
    bounds = [belady(demand.counts, [0] * used.shape[1], [n]).hit_rate_distinct for n in n_slots]
    rows = []
    for names in ROWS:
        found = fitted(np.stack([known[name] for name in names]), used, slice(first, second))[second:]
        cells = [recall(found, tested, n) for n in (n_used // 2, n_used)]
        for n, bound in zip(n_slots, bounds, strict=True):
            for most in COPIES:
                told = [replay(Told(found, each), demand, n, max_uploads=most) for each in MARGINS]
                cells.append(max(each.hit_rate_distinct for each in told) / bound)
        rows.append([" + ".join(names), *cells])
        print(rows[-1], flush=True)
    head = ["known", *(f"recall of {n}" for n in (n_used // 2, n_used))]
    head += [f"{share:.0%}, {'all' if most is None else most}" for share in SLOTS for most in COPIES]
    lines = [[name, *(f"{value:.1%}" for value in values)] for name, *values in rows]
    shares = ", ".join(f"{share:.1%}" for share in agreed)
    text = f"{len(tested)} tokens. Drafted tokens that are the target's best ones, in a row: {shares}."
    text += "\n\n" + table(head, lines)
    publish(args, "A prediction layer as a sensor of the next token's experts", text, rows)
