"""Drafts change the number of tokens in a step, but not the text, and they follow their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spac.config import SamplingConfig
from tests.session.lab import Lab, generate, prompt

if TYPE_CHECKING:
    pass

HOT = SamplingConfig(temp=1.0, top_k=40, seed=42, repeat_penalty=1.1, ignore_eos=True)
N = 64


def test_sampled_text_is_that_of_plain_sampling_with_the_same_seed(lab, target, other):
    """Each token takes one random number, with any draft. Therefore the text is exactly the same."""
    within = replace(HOT, grammar='root ::= ("a" | "b" | "c" | "d")*', ignore_eos=False)
    plain = lab.engine(target)
    for draft in (target, other):
        engine = lab.engine(target, draft=draft, draft_length=5)
        for sampling in (HOT, within):
            expected = generate(plain, prompt(20), N, sampling=sampling)
            assert generate(engine, prompt(20), N, sampling=sampling) == expected


def test_a_draft_of_the_same_weights_is_always_accepted(lab, target):
    engine, seen = lab.engine(target, draft=target, draft_length=4), []
    engine.loop.on("verify_end", lambda step: seen.append((step.n_drafted, step.n_accepted)))
    generate(engine, prompt(20), 61)
    assert all(n_drafted == n_accepted for n_drafted, n_accepted in seen)
    assert sum(n_drafted for n_drafted, _ in seen) > 40


def drafts_of(lab: Lab, target: Path, **options: Any) -> list[list[int]]:
    engine, drafts = lab.engine(target, **options), []
    engine.loop.on("draft_end", lambda event: drafts.append(event.tokens.tolist()))
    generate(engine, prompt(20), 12)
    return drafts


def test_a_draft_is_greedy_and_ends_at_an_improbable_token(lab, target, other):
    """A token's probability is that among the ten most probable ones, as in llama.cpp's drafts."""
    engine = lab.engine(target)
    tokens = np.append(prompt(20), generate(engine, prompt(20), 1)).astype(np.int32)
    greedy, chances = list[int](), list[float]()
    for _ in range(4):
        logits = lab.logits_after(other, np.concatenate([tokens, np.array(greedy, np.int32)]))
        ten = np.sort(logits)[-10:]
        greedy.append(int(logits.argmax()))
        chances.append(float(1 / np.exp(ten - ten[-1]).sum()))
    least = int(np.argmin(chances))
    for p_min, n in ((0.0, 4), (min(chances) * 0.99, 4), (min(chances) * 1.01, least)):
        assert drafts_of(lab, target, draft=other, draft_length=4, draft_p_min=p_min)[0] == greedy[:n]
    assert not any(drafts_of(lab, target, draft=other, draft_length=4, draft_p_min=1.0)), "none is certain"
    shorter = {"draft": other, "draft_length": 4, "draft_p_min": min(chances) * 1.01, "draft_min": least + 1}
    assert drafts_of(lab, target, **shorter)[0] == [], "a draft that is shorter is dropped"


def test_a_shorter_draft_of_n_grams_is_dropped_too(lab, target):
    def lengths(least: int) -> set[int]:
        engine, drafts = lab.engine(target, draft_type="ngram-cache", draft_length=16, draft_min=least), []
        engine.loop.on("draft_end", lambda event: drafts.append(len(event.tokens)))
        generate(engine, np.tile(prompt(7), 12), 150)
        return set(drafts)

    longest = max(lengths(0))
    assert longest > 0
    assert max(lengths(longest)) == longest
    assert lengths(longest + 1) == {0}


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_larger_vocabulary_on_one_side(lab, target, tiny_model, which):
    """Tokens that the other side does not have are drafted or sampled, and no call fails."""
    padded = tiny_model("qwen3", n_vocab=300)
    pair = (padded, target) if which == "target" else (target, padded)
    bias = {290: 8.0, 295: 8.0} if which == "target" else {}
    sampling = SamplingConfig(temp=1.0, top_k=0, seed=4, logit_bias=bias, ignore_eos=True)
    plain = generate(lab.engine(pair[0], sampling=sampling), prompt(20), N)
    engine = lab.engine(pair[0], draft=pair[1], draft_length=4, sampling=sampling)
    assert generate(engine, prompt(20), N) == plain
    assert which == "draft" or {290, 295} & set(plain)
