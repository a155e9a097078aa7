"""A step's probabilities are those of the target's own logits at each place, before any sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.engine.loop_sequence import LoopSequence
from spac.errors import InputError
from tests.session.lab import Lab, prompt

N_STEPS = 8
CLOSE = 3e-3
"""Tolerance. Batches of different sizes round differently, but another place differs by far more."""
F32 = {"cache_type_k": "f32", "cache_type_v": "f32"}
ALIKE = {"type_k": 0, "type_v": 0, "flash_attn_type": 0}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0.0},
    "hot": {"temp": 1.0, "seed": 3, "repeat_penalty": 1.3},
    "grammar": {"temp": 0.0, "grammar": 'root ::= [a-z ]+ "."', "logit_bias": {97: 5.0}},
}
"""A grammar refuses probable tokens. The tokens differ then, and the model is the same."""


@pytest.mark.parametrize(
    ("draft", "sampling"), [("none", "greedy"), ("right", "grammar"), ("wrong", "hot"), ("wrong", "grammar")]
)
def test_they_are_those_of_the_model(lab: Lab, target: Path, other: Path, draft: str, sampling: str) -> None:
    """They are right for the first token behind a prompt too, and behind drafts that were rejected."""
    options = {} if draft == "none" else {"draft": target if draft == "right" else other, "draft_length": 4}
    engine = lab.engine(target, **F32, **options)
    sequence = LoopSequence(engine.loop, {**SAMPLINGS[sampling], "ignore_eos": True}, 60, 3)
    tokens, n_others, n_drafted = prompt(20), 0, 0
    sequence.prefill(tokens)
    for _ in range(N_STEPS):
        step = sequence.step()
        n_drafted += step.n_drafted
        chosen, ids, top = sequence.probabilities(3)
        assert chosen.shape == (len(step.tokens),)
        assert ids.shape == top.shape == (len(step.tokens), 3)
        for row, token in enumerate(step.tokens):
            logits = lab.logits_after(target, tokens, **ALIKE).astype(np.float64)
            right = logits - np.logaddexp.reduce(logits)
            assert chosen[row] == pytest.approx(right[token], abs=CLOSE)
            np.testing.assert_allclose(top[row], np.sort(right)[::-1][:3], atol=CLOSE)
            np.testing.assert_allclose(top[row], right[ids[row]], atol=CLOSE)
            n_others += int(token != ids[row][0])
            tokens = np.append(tokens, token).astype(np.int32)
    sequence.cancel()
    assert (n_others == 0) == (sampling == "greedy")
    assert (n_drafted == 0) == (draft == "none")


def test_all_of_them_are_one(lab: Lab, target: Path) -> None:
    engine = lab.engine(target)
    sequence = LoopSequence(engine.loop, SAMPLINGS["greedy"], 1, 10**6)
    sequence.prefill(prompt(5))
    sequence.step()
    chosen, ids, top = sequence.probabilities(0)
    assert sorted(ids[0]) == list(range(ids.shape[1]))
    assert np.exp(top[0], dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)
    assert chosen[0] == top[0, 0] == top.max()
    assert (np.diff(top[0]) <= 0).all()
    with pytest.raises(InputError, match="no probabilities"):
        LoopSequence(engine.loop, {}).probabilities(1)
