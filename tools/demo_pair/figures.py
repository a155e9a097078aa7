"""Measure the finished pair, as it is shipped (Q8_0), and write the figures into the tables of its card.

Acceptance needs one forward pass of each model over text of the target. Every step drafts 8 tokens. It ends
at the first refusal, and the target adds a token of its own. For a given text of the target, the acceptance
of a drafted token does not depend on how that text came about. The card describes the kinds of acceptance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from torch.nn import functional

from spac import demo
from tools.twin.drift import DRAFTS, PAPER_GROWTH, Locality

from .data import END_OF_TEXT, Stream, load_tokenizer, rows_of, vocabulary
from .export import rounded
from .generate import TEMPERATURE, distribution, generate
from .model import HEADS, KV_HEADS, TARGET, WIDTH, Form, LanguageModel

DRAFT_LENGTH, LONGEST_PERIOD, SHORTEST_LOOP = 8, 64, 24
_TEXTS, _PROMPT, _WRITTEN = 64, 96, 416
_PIECES, _PIECE = 64, 1024


def _table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown. The head's cells are parted by bars."""
    cells = head.split(" | ")
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells, ["---"] * len(cells), *rows))


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f} M"


# Likelihood and sizes


def bits_per_byte(model: LanguageModel, rows: Tensor, token_bytes: Tensor) -> float:
    """Return the bits per byte of all tokens of ``rows`` except the first of each."""
    scores = (model.scores(model.features(row[None, :-1])[0])[0] for row in rows)
    pairs = zip(scores, rows, strict=True)
    bits = sum(functional.cross_entropy(each, row[1:], reduction="sum").item() for each, row in pairs)
    return bits / math.log(2) / int(token_bytes[rows[:, 1:]].sum())


def _form(form: Form) -> str:
    heads = f"{form.layers} layers, width {WIDTH}, {HEADS} heads ({KV_HEADS} for keys and values), "
    if form.experts:
        return heads + f"{form.experts} experts of {form.ffn} rows, {form.experts_used} per token"
    return heads + f"feed-forward of {form.ffn} rows"


# Acceptance


def in_loop(tokens: np.ndarray) -> np.ndarray:
    """Return for each token if the text up to and with it repeats itself.

    It does when, for some period of at most 64 tokens, the last ``max(24, 2 * period)`` tokens each equal the
    one a period earlier.
    """
    looping = np.zeros(len(tokens), dtype=bool)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        same = np.concatenate([np.zeros(period, dtype=bool), tokens[period:] == tokens[:-period]])
        last_break = np.maximum.accumulate(np.where(same, -1, np.arange(len(tokens))))
        looping |= np.arange(len(tokens)) - last_break >= max(SHORTEST_LOOP, 2 * period)
    return looping


def accepted_tokens(
    target: LanguageModel, draft: LanguageModel, rows: Tensor, temperature: float, is_sampled: bool
) -> np.ndarray:
    """Return bool [B, T - prompt]: the target would have accepted the draft's token at this position. The
    draft samples, or takes its best token."""

    def scores(model: LanguageModel, part: Tensor) -> Tensor:
        return model.scores(model.features(part)[0][:, _PROMPT - 1 : -1]).flatten(0, 1)

    def chance(model: LanguageModel, part: Tensor, written: Tensor) -> Tensor:
        """Return the probability [N, 1] of ``written`` [N, 1]; zero where the samplers dropped it."""
        each, tokens = distribution(scores(model, part), torch.full((len(written),), temperature))
        return (each * (tokens == written)).sum(-1, keepdim=True)

    result, random = [], torch.Generator().manual_seed(5)
    for part in rows.split(8):
        written = part[:, _PROMPT:].reshape(-1, 1)
        if is_sampled:
            mine, theirs = chance(draft, part, written), chance(target, part, written)
            accepted = torch.rand(mine.shape, generator=random) * theirs.clamp_min(1e-9) < mine
        else:
            accepted = scores(draft, part).argmax(-1, keepdim=True) == written
        result.append(accepted.view(len(part), -1))
    return torch.cat(result).numpy()


def _steps(accepted: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (first token, accepted tokens) of each step over one text."""
    place = 0
    while place + DRAFT_LENGTH < len(accepted):
        window = accepted[place : place + DRAFT_LENGTH]
        count = DRAFT_LENGTH if window.all() else int(window.argmin())
        yield place, count
        place += count + 1


def acceptance_row(name: str, rows: np.ndarray, accepted: np.ndarray) -> list[str]:
    """Return a row of the table. A step is in a loop if it begins in one."""
    looping = np.stack([in_loop(row)[_PROMPT:] for row in rows])
    counts: dict[bool, list[int]] = {True: [], False: []}
    for text, loop in zip(accepted, looping, strict=True):
        for place, count in _steps(text):
            counts[bool(loop[place])].append(count)
    parts = (counts[False] + counts[True], counts[False], counts[True])
    rates = [f"{np.mean(part) / DRAFT_LENGTH:.2f}" if part else "–" for part in parts]
    outside = f"{np.mean(counts[False]) + 1:.2f}" if counts[False] else "–"
    return [name, *rates, outside, f"{accepted[~looping].mean():.2f}", f"{100 * looping.mean():.0f} %"]


# Routing


def routing(model: LanguageModel, tokens: Tensor) -> tuple[str, list[Locality]]:
    """Return the table of the layers' figures over sequences ``tokens`` [B, T], and their localities."""
    _, routed = model.features(tokens)
    rows, localities = [], []
    for layer, (chosen, logits) in enumerate(zip(routed.chosen, routed.logits, strict=True)):
        active = torch.zeros(logits.shape, dtype=torch.bool).scatter_(1, chosen, True)
        load, chance = active.float().mean(0) / chosen.shape[1], logits.softmax(-1)
        place = Locality.of(active.view(*tokens.shape, -1).transpose(0, 1).numpy())
        entropies = [-(p * p.clamp_min(1e-12).log2()).sum(-1).mean().item() for p in (load, chance)]
        figures = (*entropies, load.min().item() * logits.shape[1], place.kept, place.near)
        rows.append([str(layer), *(f"{figure:.2f}" for figure in figures)])
        localities.append(place)
    head = (
        "layer | entropy of load (bits) | entropy per token (bits) | rarest expert's load | "
        "experts of the previous token | experts of the last 8 tokens"
    )
    return _table(head, rows), localities


def _growth(localities: Sequence[list[Locality]]) -> str:
    share, rows = TARGET.experts_used / TARGET.experts, []
    for gamma in DRAFTS:
        measured = [float(np.mean([each.growth[gamma] for each in layers])) for layers in localities]
        random = (1 - (1 - share) ** (gamma + 1)) / share
        rows.append([str(gamma), *(f"{each:.2f}" for each in (*measured, random, PAPER_GROWTH[gamma]))])
    head = "γ | held-out text | the target's own text | random routing | Qwen3-235B-A22B (MoE-SpAc, A.1)"
    return _table(head, rows)


# The card


@torch.no_grad()
def tables(work: Path, models: Path) -> list[str]:
    """Return the card's tables for the pair in ``work``, in their order."""
    (trained, state), (trained_draft, draft_state) = (
        LanguageModel.load(work / f"{name}.pt") for name in ("target", "draft")
    )
    target, draft = rounded(trained), rounded(trained_draft)
    drafts = {"draft": draft, "target as Q4_0": rounded(trained, GGMLQuantizationType.Q4_0)}
    held_out, train = (Stream.load(work / f"{name}.npz") for name in ("held_out", "train"))

    def pieces(count: int, length: int) -> Tensor:
        """Return pieces of held-out text at even distances."""
        begins = np.linspace(0, len(held_out.tokens) - length - 1, count).astype(int)
        return torch.from_numpy(rows_of(held_out.tokens, begins, length))

    prompts, natural = pieces(_TEXTS, _PROMPT), pieces(_PIECES, _PIECE)
    greedy = generate(target, prompts, _WRITTEN, torch.zeros(_TEXTS))
    sampled = generate(target, prompts, _WRITTEN, torch.full((_TEXTS,), TEMPERATURE), seed=1)
    tokens, _ = vocabulary(load_tokenizer(work))
    token_bytes = torch.tensor([0 if token == END_OF_TEXT else len(token) for token in tokens])
    sizes = [
        [
            f"`{name}.gguf`", model.form.architecture, _form(model.form),
            _millions(sum(value.numel() for value in model.weights.values())),
            f"{(models / f'{name}.gguf').stat().st_size / 1e6:.1f} MB", _millions(each["tokens"]),
            f"{each['seconds'] / 60:.0f} min", f"{bits_per_byte(model, natural, token_bytes):.3f}",
        ]
        for name, model, each in (("target", target, state), ("draft", draft, draft_state))
    ]  # fmt: skip
    texts = [
        [name, str(each.n_text), _millions(each.n_byte), _millions(len(each.tokens))]
        for name, each in (("training", train), ("held out, by story", held_out))
    ]
    own = sum(np.load(path).size for path in (work / "own").glob("????.npy"))
    ways = (
        ("greedy: {}", greedy, 0.0, False),
        ("sampled: {} by speculative sampling", sampled, TEMPERATURE, True),
        ("sampled: {} by llama.cpp's matching", sampled, TEMPERATURE, False),
    )
    acceptance = [
        acceptance_row(way.format(name), rows.numpy(), accepted_tokens(target, each, rows, *how))
        for way, rows, *how in ways
        for name, each in drafts.items()
    ]
    (routed, natural_places), (routed_own, own_places) = (
        routing(target, natural[::2]),
        routing(target, sampled),
    )
    return [
        _table(
            "file | form | shape | parameters | size (Q8_0) | training tokens | time | "
            "bits per byte, held out",
            sizes,
        ),
        _table("text | texts | bytes | tokens", [*texts, ["the target's own", "–", "–", _millions(own)]]),
        _table(
            "text of the target, drafted by | all | outside loops | in loops | tokens per step, outside | "
            "agreement per token, outside | text in loops",
            acceptance,
        ),
        routed,
        routed_own,
        _growth((natural_places, own_places)),
    ]


def fill_card(work: Path, models: Path) -> None:
    """Replace the tables of the model card in ``models``. A folder without one gets the shipped pair's."""
    card, made = models / "MODEL_CARD.md", iter(tables(work, models))
    old = card if card.is_file() else demo.TARGET.with_name(card.name)
    text = re.sub(r"^\|.*(?:\n\|.*)*", lambda _: next(made), old.read_text(encoding="utf-8"), flags=re.M)
    card.write_text(text, encoding="utf-8")
