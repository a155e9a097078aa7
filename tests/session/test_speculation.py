"""Speculation is lossless. It changes the number of tokens in a step, but not the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, Tokens, generate, logits_after, prompt, take

N_NEW = 64


def same_up_to_ties(
    lab: Lab, path: Path, start: Tokens, a: list[int], b: list[int], margin: float = 1e-3
) -> bool:
    """Return true if two greedy texts are equal, or differ first where the model holds both tokens (nearly)
    equally likely. Batches of different sizes round differently."""
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            logits = logits_after(lab, path, np.concatenate([start, np.array(a[:i], np.int32)]))
            return abs(float(logits[x] - logits[y])) <= margin
    return True


@pytest.mark.parametrize("draft_length", [1, 2, 5, 16])
def test_greedy_text_is_that_of_plain_decoding(
    lab: Lab, target: Path, other: Path, draft_length: int
) -> None:
    start = prompt(20)
    plain = generate(lab.plain(target, **GREEDY), start, N_NEW)
    session = lab.session(lab.context(target), lab.context(other), draft_max=draft_length, **GREEDY)
    assert same_up_to_ties(lab, target, start, plain, generate(session, start, N_NEW))


def test_a_draft_of_the_same_weights_is_always_accepted(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    session.prefill(prompt(20))
    for _ in range(12):
        step = session.step()
        assert (step.n_drafted, step.n_accepted, step.n_verified) == (4, 4, 5)
        assert len(step.tokens) == 5


def test_a_draft_of_other_weights_is_mostly_refused(lab: Lab, target: Path, other: Path) -> None:
    session = lab.session(lab.context(target), lab.context(other), draft_max=4, temp=1.0, top_k=0, seed=1)
    session.prefill(prompt(20))
    steps = [session.step() for _ in range(30)]
    drafted, accepted = sum(s.n_drafted for s in steps), sum(s.n_accepted for s in steps)
    assert drafted > 30 * 3  # a draft ends before an end-of-generation token
    assert accepted < drafted / 4


def test_sampled_text_is_that_of_plain_sampling_with_the_same_seed(
    lab: Lab, target: Path, other: Path
) -> None:
    """Each token takes one random number, with any draft. Therefore the text is exactly the same."""
    sampling: dict[str, Any] = {"temp": 1.0, "top_k": 40, "seed": 42, "repeat_penalty": 1.1}
    plain = generate(lab.plain(target, **sampling), prompt(20), N_NEW)
    for draft in (target, other):
        session = lab.session(lab.context(target), lab.context(draft), draft_max=5, **sampling)
        assert generate(session, prompt(20), N_NEW) == plain


def test_a_seed_decides_the_text(lab: Lab, target: Path) -> None:
    def text(seed: int) -> list[int]:
        return generate(lab.plain(target, temp=1.0, seed=seed), prompt(8), 24)

    assert text(1) == text(1)
    assert text(1) != text(2)
    session = lab.plain(target, temp=1.0, seed=1)
    assert generate(session, prompt(8), 24) == generate(session, prompt(8), 24), (
        "each prompt starts the sampler anew"
    )


def test_sampling_keeps_the_distribution(lab: Lab, target: Path, other: Path) -> None:
    """Two speculated tokens after a prompt, of 4 candidates each, follow the exact probabilities."""
    n_samples, n_candidates = 1200, 4
    start = prompt(6, seed=3)

    def candidates(tokens: Tokens) -> tuple[list[int], list[float]]:
        logits = logits_after(lab, target, tokens).astype(np.float64)
        best = np.argsort(-logits)[:n_candidates]
        odds = np.exp(logits[best] - logits[best[0]])
        return best.tolist(), (odds / odds.sum()).tolist()

    expected: dict[tuple[int, int], float] = {}
    for first, p_first in zip(*candidates(start), strict=True):
        for second, p_second in zip(*candidates(np.append(start, np.int32(first))), strict=True):
            expected[first, second] = p_first * p_second

    target_context, draft_context = lab.context(target), lab.context(other)
    counts = dict.fromkeys(expected, 0)
    for seed in range(n_samples):
        sampling: dict[str, Any] = {
            "temp": 1.0,
            "top_k": n_candidates,
            "samplers": ["top_k", "temperature"],
            "seed": seed,
        }
        with lab.session(target_context, draft_context, draft_max=2, **sampling) as session:
            first, second = generate(session, start, 2)
            counts[first, second] += 1
    chi_square = sum((counts[key] - n_samples * p) ** 2 / (n_samples * p) for key, p in expected.items())
    # With 15 degrees of freedom, one in a thousand runs is above 37.7. If one candidate is preferred by a
    # tenth, the value is in the hundreds.
    assert chi_square < 37.7, counts


@pytest.mark.parametrize(
    "draft_type", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
)
def test_ngram_drafts(lab: Lab, target: Path, draft_type: str) -> None:
    sizes = {"ngram_size_n": 3, "ngram_size_m": 6, "ngram_mod_n_match": 4, "ngram_mod_n_min": 1}
    start = np.tile(prompt(9), 6)
    plain = generate(lab.plain(target, **GREEDY), start, 100)
    session = lab.session(lab.context(target), draft_types=[draft_type], draft_max=6, **sizes, **GREEDY)
    session.prefill(start)
    tokens: list[int] = []
    drafted = accepted = 0
    while len(tokens) < 100:
        step = session.step()
        tokens += step.tokens.tolist()
        drafted += step.n_drafted
        accepted += step.n_accepted
    assert same_up_to_ties(lab, target, start, plain, tokens[:100])
    assert drafted > 0, "a text that repeats itself must give drafts"
    assert 0 <= accepted <= drafted


def test_ngrams_and_a_draft_model_together(lab: Lab, target: Path, other: Path) -> None:
    start = np.tile(prompt(9), 4)
    plain = generate(lab.plain(target, **GREEDY), start, N_NEW)
    types = ["ngram-simple", "draft-simple"]
    session = lab.session(lab.context(target), lab.context(other), draft_types=types, draft_max=4, **GREEDY)
    assert same_up_to_ties(lab, target, start, plain, generate(session, start, N_NEW))


def test_draft_length_zero_is_plain_decoding(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    session.prefill(prompt(20))
    session.set_draft_length(0)
    for _ in range(6):
        assert (session.step().n_verified, session.last_step.n_drafted) == (1, 0)
    session.set_draft_length(3)
    for _ in range(4):
        step = session.step()
        assert (step.n_drafted, step.n_accepted) == (3, 3), (
            "the draft model has caught up with what it did not see"
        )
    with pytest.raises(InputError, match="draft_max, 4"):
        session.set_draft_length(5)


def test_p_min_and_draft_min(lab: Lab, target: Path, other: Path) -> None:
    session = lab.session(lab.context(target), lab.context(other), draft_max=4, p_min=1.0, temp=0.0)
    session.prefill(prompt(20))
    assert session.step().n_drafted == 0, "no token is certain"
    session.close()
    session = lab.session(lab.context(target), lab.context(other), draft_max=4, draft_min=5, temp=0.0)
    session.prefill(prompt(20))
    assert session.step().n_drafted == 0, "four tokens are less than five"


def test_a_draft_is_greedy_and_ends_at_an_improbable_token(lab: Lab, target: Path, other: Path) -> None:
    """A token's probability is that among the ten most probable ones, as in llama.cpp's drafts."""
    tokens, greedy, chances = prompt(20), list[int](), list[float]()
    for _ in range(4):
        logits = logits_after(lab, other, np.concatenate([tokens, np.array(greedy, np.int32)]))
        ten = np.sort(logits)[-10:]
        greedy.append(int(logits.argmax()))
        chances.append(float(1 / np.exp(ten - ten[-1]).sum()))
    least, drafts = int(np.argmin(chances)), list[list[int]]()
    for p_min in (0.0, min(chances) * 0.99, min(chances) * 1.01):
        session = lab.session(lab.context(target), lab.context(other), draft_max=4, temp=0.0, p_min=p_min)
        session.on("draft_end", lambda event: drafts.append(event.tokens.tolist()))
        session.prefill(tokens)
        session.step()
        session.close()
    assert drafts == [greedy, greedy, greedy[:least]]


def test_a_grammar_holds_with_speculation(lab: Lab, target: Path, other: Path) -> None:
    sampling: dict[str, Any] = {"temp": 1.0, "seed": 5, "grammar": 'root ::= ("a" | "b" | "c")*'}
    plain = generate(lab.plain(target, **sampling), prompt(12), 20)
    session = lab.session(lab.context(target), lab.context(other), draft_max=3, **sampling)
    assert generate(session, prompt(12), 20) == plain
    assert set(plain) - {ord(letter) for letter in "abc"} <= {268, 270}, "bytes are tokens 0 to 255"


def test_end_of_generation_is_reported(lab: Lab, target: Path, other: Path) -> None:
    end = 268  # <|endoftext|>
    session = lab.session(
        lab.context(target), lab.context(other), draft_max=3, temp=0.0, logit_bias={end: 1000.0}
    )
    session.prefill(prompt(5))
    step = session.step()
    assert (step.tokens.tolist(), step.reason) == ([end], "stop")
    assert take(session, 1) == [end], "going on is allowed"
