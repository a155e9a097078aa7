"""Train a layer that predicts one token more (multi-token prediction, MTP) for the split model.

The layer has the form of GLM-4.5's: a projection of the next token's embedding and of the last hidden state,
then a layer like the others with the model's own embedding as its output matrix. It begins as the last layer
with its experts and its router, which stays as it is. The projection begins by passing the state. It learns
the model's own distributions on texts that the model read and continued. Drafts of several tokens give the
layer its own output in place of the state; so each batch has a second pass with the outputs of the first.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spac.model.c_api import Model
from tools.split_dense.network import TYPE, Split, Text, Weights
from tools.split_dense.text import MODULES, MORE_QUESTIONS, chat_prompt, docstrings
from tools.split_dense.writer import add_prediction

_RATE, _WARM, _ROWS, _SAVE_EVERY_S = 1e-3, 50, 8, 30
LENGTH, STEPS = 160, 600
"""Tokens of each text, and steps of the training."""
_HELD_OUT, _START, _TOGETHER = 16, 24, 64
_SECOND = 0.7
"""The second pass's share of the loss, beside 1 of the first one's."""
_STATE = 0.1
"""The weight of the squared error of the predicted state, beside the divergence."""
Pass = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]


def learn(path: Path, folder: Path, threads: int) -> list[float]:
    """Add a trained layer to the split model at `path`, and return its agreement on texts it did not learn.

    The texts and the training are kept in `folder`, and go on from there.
    """
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    model = Split(path)
    texts = corpus(model, path, folder)
    layer = train(model, Text(*(part[:-_HELD_OUT] for part in texts)), STEPS, folder / "layer.pt")
    add_prediction(path, {name: value.numpy() for name, value in layer.items()})
    return agreement(model, layer, Text(*(part[-_HELD_OUT:] for part in texts)))


def corpus(model: Split, path: Path, folder: Path) -> Text:
    """Return texts that the model read and wrote, in a random order: docstrings, answers, continuations."""
    tokenizer = Model(path, (), {"vocab_only": True})
    written = tokenizer.tokenize("\n\n".join(docstrings(MODULES))).tolist()
    asked = [tokenizer.tokenize(chat_prompt(question)).tolist() for question in MORE_QUESTIONS]
    tokenizer.close()
    rows = [written[at : at + LENGTH] for at in range(0, len(written) - LENGTH, LENGTH)]
    prompts = rows + [
        text for row, question in zip(rows, asked, strict=False) for text in (question, row[:_START])
    ]
    parts = []
    for number, first in enumerate(range(0, len(prompts), _TOGETHER)):
        part, kept = prompts[first : first + _TOGETHER], folder / f"text-{number}.pt"
        if not kept.exists():
            heat = torch.tensor([0.0, 0.0, 0.8, 0.8]).repeat(_TOGETHER)[: len(part)]
            torch.save(tuple(model.write(part, LENGTH, heat, number)), kept)
            print(f"text {number + 1} of {-(-len(prompts) // _TOGETHER)}", flush=True)
        parts.append(torch.load(kept, weights_only=True))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(prompts)))
    return Text(*(torch.cat(each)[order] for each in zip(*parts, strict=True)))


def begun(model: Split) -> Weights:
    """Return the layer before the training, in float32."""
    width = model.embedding.shape[1]
    eye = torch.eye(width)
    weights = {name: value.float().clone() for name, value in model.layers[-1].items()}
    return weights | {
        "nextn.eh_proj": torch.cat([0.1 * eye, eye], dim=1), "nextn.enorm": torch.ones(width),
        "nextn.hnorm": model.output_norm.clone(), "nextn.shared_head_norm": model.output_norm.clone(),
    }  # fmt: skip


def predict(model: Split, w: Weights, text: Text, first: Pass | None = None, after: int = 0) -> Pass:
    """Return the layer's states, experts, and keys and values for all tokens of `text` but the first.

    With a `first` pass, the states before each token are that pass's, its earlier keys and values too, and
    the first `after` tokens more are left out.
    """
    tokens = text.tokens[:, 1 + after :]
    before = text.states[:, :-1] if first is None else first[0][:, :-1]
    embedded = model.norm(model.embedding[tokens], w["nextn.enorm"])
    joined = torch.cat([embedded, model.norm(before, w["nextn.hnorm"])], -1)
    x = functional.linear(joined, w["nextn.eh_proj"].to(TYPE))
    q, k, v = model.heads(x, w, 1 + after)
    heads, own = ((q, k, v), None) if first is None else ((q, *first[2]), (k, v))
    y, chosen = model.block(x, w, heads, own)
    return model.norm(y, w["nextn.shared_head_norm"]), chosen, (k, v) if first is None else first[2]


def agreement(model: Split, w: Weights, text: Text, n: int = 3) -> list[float]:
    """Return the shares of drafts of 1 … n tokens that are the model's own best ones throughout."""
    shares, passed = [], None
    with torch.no_grad():
        wanted = functional.linear(text.states[:, 1:], model.head).argmax(-1)
        right = torch.ones_like(wanted, dtype=torch.bool)
        for after in range(n):
            passed = predict(model, w, text, passed, after)
            now = functional.linear(passed[0], model.head).argmax(-1) == wanted[:, after:]
            right = right[:, : now.shape[1]] & now
            shares.append(float(right.float().mean()))
    return shares


def train(model: Split, text: Text, steps: int, kept: Path, seed: int = 0) -> Weights:
    """Return the trained layer. A training that was stopped continues from the file `kept`."""
    words = text.tokens.unique()
    head = model.head[words]
    weights, done = begun(model), 0
    trained = [value.requires_grad_() for name, value in weights.items() if name != "ffn_gate_inp"]
    optimizer = torch.optim.AdamW(trained, _RATE, betas=(0.9, 0.95), weight_decay=0.01)
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        done = state["done"]
        optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for name, value in weights.items():
                value.copy_(state["weights"][name])
    saved, mean = time.monotonic(), 0.0
    for step in range(done, steps):
        rows = torch.from_numpy(np.random.default_rng((seed, step)).integers(len(text.tokens), size=_ROWS))
        part = Text(text.tokens[rows], text.states[rows], text.routes[:0])
        optimizer.param_groups[0]["lr"] = _RATE * min((step + 1) / _WARM, (steps - step) / steps)
        wanted = functional.linear(part.states[:, 1:], head).float().log_softmax(-1)
        first = predict(model, weights, part)
        again = predict(model, weights, part, first, 1)
        loss = _loss(first[0], part.states[:, 1:], wanted, head)
        loss = loss + _SECOND * _loss(again[0], part.states[:, 2:], wanted[:, 1:], head)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item() if mean else loss.item()
        if step + 1 == steps or time.monotonic() - saved > _SAVE_EVERY_S:
            state = {"done": step + 1, "weights": {name: value.detach() for name, value in weights.items()}}
            torch.save({**state, "optimizer": optimizer.state_dict()}, kept.with_suffix(".partial"))
            kept.with_suffix(".partial").replace(kept)
            saved = time.monotonic()
            print(f"step {step + 1} of {steps}: loss {mean:.3f}", flush=True)
    return {name: value.detach() for name, value in weights.items()}


def _loss(given: Tensor, states: Tensor, wanted: Tensor, head: Tensor) -> Tensor:
    """Return the divergence of a pass from the wanted distributions, with the error of its states."""
    scores = functional.linear(given, head).float().log_softmax(-1)
    far = (given.float() - states.float()).square().mean() / states.float().square().mean()
    return (
        functional.kl_div(scores, wanted, reduction="sum", log_target=True) / given[..., 0].numel()
        + _STATE * far
    )
