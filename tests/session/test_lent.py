"""A session whose target context has other users between calls, and one that changes its sampling."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spac.errors import InputError
from tests.conftest import TinyModel
from tests.session.lab import GREEDY, Lab, Tokens, generate, prompt, take

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP


def evaluate(context: int, tokens: Tokens) -> None:
    """Evaluate tokens by llama.cpp's C interface, behind the present ones."""
    for start in range(0, len(tokens), 64):
        piece = tokens[start : start + 64]
        data = (ctypes.c_int32 * len(piece))(*piece.tolist())  # the batch points into it
        assert api.llama_decode(context, api.llama_batch_get_one(data, len(piece))) == 0


def empty(context: int) -> None:
    api.llama_memory_clear(api.llama_get_memory(context), True)


@pytest.mark.parametrize("speculate", [False, True])
def test_what_others_evaluated_is_kept(lab: Lab, target: Path, speculate: bool) -> None:
    context = lab.context(target)
    session = lab.session(context, lab.context(target) if speculate else None, draft_max=4, **GREEDY)
    generate(session, prompt(40, seed=5), 10)
    text = prompt(90)
    empty(context)
    evaluate(context, text)
    session.adopt(text)
    assert session.n_past == 90
    done: list[int] = []
    longer = np.concatenate([text, prompt(6, seed=3)])
    session.prefill(longer, lambda n_done, _n_total: done.append(n_done))
    assert done == [95], "5 tokens, in one piece"
    assert take(session, 20) == generate(lab.plain(target, **GREEDY), longer, 20)


def test_what_is_not_adopted_is_dropped(lab: Lab, target: Path) -> None:
    context = lab.context(target)
    session = lab.session(context, lab.context(target), draft_max=4, **GREEDY)
    made = generate(session, prompt(50), 20)
    session.adopt(prompt(50)[:30])
    assert session.n_past == 30
    assert api.llama_memory_seq_pos_max(api.llama_get_memory(context), 0) == 29
    assert generate(session, prompt(50), 20) == made
    session.adopt([])
    assert session.n_past == 0
    assert generate(session, prompt(50), 20) == made


def test_what_is_not_there_is_evaluated(lab: Lab, target: Path) -> None:
    context = lab.context(target)
    session = lab.session(context, **GREEDY)
    evaluate(context, prompt(50)[:20])
    session.adopt(prompt(50))
    assert session.n_past == 20
    assert generate(session, prompt(50), 12) == generate(lab.plain(target, **GREEDY), prompt(50), 12)


def test_a_draft_that_reads_states_sees_everything(lab: Lab, tiny_model: TinyModel) -> None:
    """The draft has not seen tokens that others evaluated. The target evaluates them anew."""
    mtp = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    context = lab.context(mtp)
    draft = lab.context(mtp, ctx_type=MTP_CONTEXT, ctx_other=context)
    session = lab.session(context, draft, draft_types=["draft-mtp"], draft_max=3, **GREEDY)
    text = prompt(60)
    session.prefill(text[:31])
    evaluate(context, text[30:])
    session.adopt(text)
    assert session.n_past == 30
    assert generate(session, text, 20) == generate(lab.plain(mtp, **GREEDY), text, 20)


def test_a_prompt_comes_next(lab: Lab, target: Path) -> None:
    session = lab.plain(target, **GREEDY)
    generate(session, prompt(10), 3)
    session.adopt(prompt(10))
    with pytest.raises(InputError, match="no prompt: call prefill"):
        session.step()
    for tokens, message in (([-1], "token 0 of the prompt is -1"), ([0] * 300, "the context holds 256")):
        with pytest.raises(InputError, match=message):
            session.adopt(tokens)


def test_sampling_can_change(lab: Lab, target: Path) -> None:
    hot = {"temp": 1.2, "seed": 5, "top_k": 0}
    session = lab.plain(target, **GREEDY)
    greedy = generate(session, prompt(20), 16)
    session.set_sampling(**hot)
    assert take(session, 4) != [], "what runs goes on as it was"
    assert generate(session, prompt(20), 16) == generate(lab.plain(target, **hot), prompt(20), 16)
    with pytest.raises(InputError, match="top_p is 7"):
        session.set_sampling(top_p=7.0)
    with pytest.raises(InputError, match="the rule 'nothing' is not defined"):
        session.set_sampling(grammar="root ::= nothing")
    with pytest.raises(InputError, match="unknown sampling parameter 'draft_max', known are chat, dry_"):
        session.set_sampling(draft_max=3)  # type: ignore[call-arg]
    assert generate(session, prompt(20), 16) == generate(lab.plain(target, **hot), prompt(20), 16)
    session.set_sampling(**GREEDY)
    assert generate(session, prompt(20), 16) == greedy


def test_penalties_look_back_on_what_the_sampler_has_seen(lab: Lab, target: Path) -> None:
    wanted = 65
    session = lab.plain(target, **GREEDY, presence_penalty=500.0, logit_bias={wanted: 300.0})
    text = np.array([1, wanted, 2], np.int32)
    chosen = []
    for n_unseen in range(4):
        session.prefill(text, n_unseen=n_unseen)
        chosen.append(take(session, 1)[0] == wanted)
    assert chosen == [False, False, True, True]
