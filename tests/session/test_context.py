"""The memory keeps tokens from prompt to prompt, and a full context ends the text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, Tokens, generate, prompt, take

if TYPE_CHECKING:
    from tests.conftest import TinyModel


def evaluated(session: _core.Session, tokens: Tokens) -> int:
    """Return the number of batches that a prefill evaluates."""
    done: list[int] = []
    session.prefill(tokens, lambda n_done, n_total: done.append(n_done))
    before = session.n_past if not done else done[-1]
    assert before == len(tokens) - 1
    return len(done)


@pytest.mark.parametrize("speculate", [False, True])
def test_a_common_prefix_is_kept(lab: Lab, target: Path, speculate: bool) -> None:
    first, second = prompt(150, seed=1), np.concatenate([prompt(150, seed=1)[:140], prompt(12, seed=2)])
    expected = generate(lab.plain(target, **GREEDY), second, 20)
    draft = lab.context(target) if speculate else None
    session = lab.session(lab.context(target), draft, draft_max=4, **GREEDY)
    assert evaluated(session, first) == 3, "149 tokens in pieces of 64"
    take(session, 10)
    assert evaluated(session, second) == 1, "11 tokens in one piece"
    assert take(session, 20) == expected
    assert session.tokens[: len(second)].tolist() == second.tolist()


def test_going_on_after_generated_text_evaluates_nothing_twice(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    session.prefill(prompt(30))
    take(session, 20)
    text = session.tokens
    assert evaluated(session, text) == 0
    assert evaluated(session, np.concatenate([text, prompt(5, seed=9)])) == 1
    step = session.step()
    assert step.n_accepted == step.n_drafted == 4, "the draft model is where the target is"


def test_a_sliding_window_that_moved_on_is_not_reused(lab: Lab, tiny_model: TinyModel) -> None:
    path = tiny_model("gpt-oss", n_swa=16)
    first = prompt(700, seed=1)  # the window's cache has 256 places
    second = np.concatenate([first[:300], prompt(12, seed=2)])

    def context() -> int:
        return lab.context(path, n_ctx=1024, n_batch=32, n_ubatch=32, swa_full=False)

    expected = generate(lab.session(context(), **GREEDY), second, 12)
    session = lab.session(context(), **GREEDY)
    generate(session, first, 12)
    assert generate(session, second, 12) == expected


@pytest.mark.parametrize("speculate", [False, True])
def test_a_full_context_ends_with_all_its_tokens(lab: Lab, target: Path, speculate: bool) -> None:
    start = prompt(200)
    draft = lab.context(target) if speculate else None
    session = lab.session(lab.context(target), draft, draft_max=7, **GREEDY)
    session.prefill(start)
    tokens: list[int] = []
    while True:
        step = session.step()
        assert len(step.tokens) >= 1
        tokens += step.tokens.tolist()
        if step.reason == "length":
            break
    # Every place of the context holds an evaluated token. One more token was sampled from the last.
    assert len(start) + len(tokens) == session.n_ctx + 1
    assert session.n_past == session.n_ctx
    again = session.step()
    assert (again.tokens.size, again.reason) == (0, "length")
    if speculate:
        assert tokens == take_all(lab, target, start)


def take_all(lab: Lab, path: Path, start: Tokens) -> list[int]:
    return generate(lab.plain(path, **GREEDY), start, 10**6)


def test_prompts_as_long_as_the_context(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    session.prefill(prompt(256))
    step = session.step()
    assert (step.tokens.size, step.n_drafted, step.reason) == (1, 0, "length")
    with pytest.raises(InputError, match="257 tokens, the context holds 256"):
        session.prefill(prompt(257))


def test_reset_forgets(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    first = generate(session, prompt(30), 10)
    session.reset()
    assert (session.n_past, session.tokens.size) == (0, 0)
    with pytest.raises(InputError, match="no prompt"):
        session.step()
    assert generate(session, prompt(30), 10) == first


def test_a_prompt_of_one_token(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target), lab.context(target), draft_max=4, **GREEDY)
    assert generate(session, prompt(1), 10) == generate(lab.plain(target, **GREEDY), prompt(1), 10)
