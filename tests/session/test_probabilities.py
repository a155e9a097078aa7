"""A step's probabilities are those of the target's own logits at each place, before any sampler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from spac.machine.arrays import Float64Array
from tests.session.lab import GREEDY, Lab, Tokens, logits_after, prompt

N_STEPS = 8
CLOSE = 3e-3
"""Tolerance. Batches of different sizes round differently, but another place differs by far more."""
F32: dict[str, Any] = {"type_k": 0, "type_v": 0}  # GGML_TYPE_F32
LETTERS = 'root ::= [a-z ]+ "."'


def expected(lab: Lab, path: Path, tokens: Tokens) -> Float64Array:
    """Return the log probabilities of the token after `tokens`, which a separate context evaluates."""
    logits = logits_after(lab, path, tokens, **F32).astype(np.float64)
    return np.asarray(logits - np.logaddexp.reduce(logits))


def check(lab: Lab, path: Path, session: _core.Session, start: Tokens, n_top: int = 3) -> int:
    """Check every token of some steps. Return the number of tokens that were not the most probable ones."""
    session.prefill(start)
    tokens, n_others = start, 0
    for _ in range(N_STEPS):
        step = session.step()
        chosen, ids, top = session.probabilities(n_top)
        assert chosen.shape == (len(step.tokens),)
        assert ids.shape == top.shape == (len(step.tokens), n_top)
        for row, token in enumerate(step.tokens):
            right = expected(lab, path, tokens)
            assert chosen[row] == pytest.approx(right[token], abs=CLOSE)
            np.testing.assert_allclose(top[row], np.sort(right)[::-1][:n_top], atol=CLOSE)
            np.testing.assert_allclose(top[row], right[ids[row]], atol=CLOSE)
            n_others += int(token != ids[row][0])
            tokens = np.append(tokens, token).astype(np.int32)
    return n_others


@pytest.mark.parametrize("sampling", [GREEDY, {"temp": 1.0, "seed": 3, "repeat_penalty": 1.3}])
@pytest.mark.parametrize("draft", ["none", "right", "wrong"])
def test_they_are_those_of_the_model(
    lab: Lab, target: Path, other: Path, draft: str, sampling: dict[str, Any]
) -> None:
    """They are right for the first token behind a prompt too, and behind drafts that were rejected."""
    drafts = {} if draft == "none" else {"draft": lab.context(target if draft == "right" else other, **F32)}
    session = lab.session(lab.context(target, **F32), **drafts, draft_max=4, **sampling)
    n_others = check(lab, target, session, prompt(20))
    assert (n_others == 0) == (sampling is GREEDY)


def test_a_length_of_0_between_drafts(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target, **F32), lab.context(target, **F32), draft_max=4, **GREEDY)
    for length in (4, 0, 2):
        session.set_draft_length(length)
        check(lab, target, session, prompt(12, seed=length))


def test_what_samplers_do_does_not_count(lab: Lab, target: Path) -> None:
    """A grammar refuses probable tokens, and there are biases. The tokens differ, the model is the same."""
    session = lab.session(
        lab.context(target, **F32), lab.context(target, **F32), draft_max=4, grammar=LETTERS,
        logit_bias={97: 5.0}, **GREEDY,
    )  # fmt: skip
    assert check(lab, target, session, prompt(20)) > 0


def test_all_of_them_are_one(lab: Lab, target: Path) -> None:
    session = lab.plain(target, **GREEDY)
    session.prefill(prompt(5))
    session.step()
    chosen, ids, top = session.probabilities(10**6)
    assert sorted(ids[0]) == list(range(ids.shape[1]))
    assert np.exp(top[0], dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)
    assert chosen[0] == top[0, 0] == top.max()
    assert (np.diff(top[0]) <= 0).all()
    assert session.probabilities(0)[1].shape == (1, 0)


def test_they_are_gone_when_the_logits_are(lab: Lab, target: Path) -> None:
    session = lab.plain(target, **GREEDY)
    start = prompt(5)

    def make_a_step() -> None:
        session.prefill(start)
        session.step()
        session.probabilities(1)

    with pytest.raises(InputError, match="gone"):
        session.probabilities(1)
    for ends in (lambda: session.prefill(start[:3]), lambda: session.adopt(start[:3]), session.reset):
        make_a_step()
        ends()
        with pytest.raises(InputError, match="right after step"):
            session.probabilities(1)
    make_a_step()
    with pytest.raises(InputError, match="n_top is -1"):
        session.probabilities(-1)
