"""Several sequences on one context. Each one's tokens are those of a session on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, prompt
from tests.session.several import CONTEXT, PROMPTS, Made, alone, run, session


@pytest.mark.parametrize("drafting", ["none", "right", "wrong", "lookup"])
@pytest.mark.parametrize("separate", [False, True])
def test_each_sequence_says_what_it_says_alone(
    lab: Lab, target: Path, other: Path, drafting: str, separate: bool
) -> None:
    options: dict[str, Any] = {"draft_max": 4}
    if drafting == "lookup":
        options |= {"draft_types": ["ngram-map-k"], "ngram_size_n": 1}
    draft = {"right": target, "wrong": other}.get(drafting)
    several = session(lab, target, draft=draft, unified=not separate, separate=separate,
                      size={**CONTEXT, "n_ctx": 1024}, **options)  # fmt: skip
    ids = [several.join(each, **GREEDY) for each in PROMPTS]
    made = run(several, ids, 40, {})
    for i, tokens in zip(ids, PROMPTS, strict=True):
        assert made[i][:40] == alone(lab, target, tokens, 40)


def test_each_sequence_has_its_own_sampling(lab: Lab, target: Path) -> None:
    several = session(lab, target)
    samplings: list[dict[str, Any]] = [
        {"temp": 0.0, "repeat_penalty": 1.5},
        {"temp": 1.0, "seed": 5},
        {"temp": 0.0, "grammar": 'root ::= "a"*'},
    ]
    ids = [several.join(PROMPTS[0], **each) for each in samplings]
    made = run(several, ids, 20, {})
    for i, each in zip(ids, samplings, strict=True):
        assert made[i][:20] == alone(lab, target, PROMPTS[0], 20, **each)


def test_one_that_leaves_touches_no_other(lab: Lab, target: Path) -> None:
    several = session(lab, target, 2)
    first, second = (several.join(each, **GREEDY) for each in PROMPTS[:2])
    made = run(several, [first, second], 7, {})
    several.leave(second)
    with pytest.raises(InputError, match=f"no sequence {second}"):
        several.step([(second, 0)], 0)
    third = several.join(PROMPTS[2], **GREEDY)
    with pytest.raises(InputError, match="all 2 sequences are in use"):
        several.join(PROMPTS[2], **GREEDY)
    run(several, [first, third], 20, made)
    assert made[first][:27] == alone(lab, target, PROMPTS[0], 27)
    assert made[third][:20] == alone(lab, target, PROMPTS[2], 20)


def test_a_prompt_is_read_beside_the_others(lab: Lab, target: Path) -> None:
    several = session(lab, target, 2)
    first = several.join(PROMPTS[1], **GREEDY)
    made = run(several, [first], 3, {})
    second = several.join(prompt(200, 9), **GREEDY)
    n_steps, pending = 0, 199
    while pending:
        step = several.step([(first, 0), (second, 0)], 50)
        assert step.n_prompt == min(50, pending)
        by_id = {each.id: each for each in step.sequences}
        assert len(by_id[first].tokens) == 1
        pending = by_id[second].n_pending
        made[first] += by_id[first].tokens.tolist()
        made.setdefault(second, []).extend(by_id[second].tokens.tolist())
        n_steps += 1
    assert n_steps == 4
    run(several, [first, second], 20, made)
    assert made[first][:20] == alone(lab, target, PROMPTS[1], 20)
    assert made[second][:20] == alone(lab, target, prompt(200, 9), 20)


def test_what_two_prompts_share_is_read_once(lab: Lab, target: Path) -> None:
    several = session(lab, target)
    shared = prompt(100, 4)
    texts = [np.concatenate([shared, prompt(20, i)]) for i in range(2)]
    first = several.join(texts[0], **GREEDY)
    made = run(several, [first], 5, {})
    second = several.join(texts[1], **GREEDY)
    assert several.n_reused(second) == 100
    run(several, [first, second], 20, made)
    several.leave(first)
    again = several.join(np.concatenate([texts[0], prompt(9)]), **GREEDY)
    assert several.n_reused(again) == 120
    run(several, [second], 10, made)
    assert made[second][:30] == alone(lab, target, texts[1], 30)


def test_when_the_memory_is_full_the_youngest_waits_and_comes_back(lab: Lab, target: Path) -> None:
    several = session(lab, target)
    texts = [prompt(200, 1), prompt(180, 2), prompt(60, 3)]
    ids = [several.join(each, **GREEDY) for each in texts]
    made: Made = {i: [] for i in ids}
    parked, n_waits = set(), 0
    for _ in range(60):
        for each in several.step([(i, 0) for i in ids], 512).sequences:
            each.check()
            made[each.id] += each.tokens.tolist()
            n_waits += each.waits
        parked |= {i for i, is_parked, _ in several.held() if is_parked}
    assert parked == {ids[2]}
    assert n_waits > 0
    assert len(made[ids[0]]) == len(made[ids[1]]) == 60
    several.leave(ids[0])
    run(several, ids[1:], 30, made)
    assert not any(is_parked for _, is_parked, _ in several.held())
    for i, tokens in zip(ids, texts, strict=True):
        assert made[i] == alone(lab, target, tokens, len(made[i]))


def test_a_sequence_ends_at_the_contexts_end(lab: Lab, target: Path) -> None:
    several = session(lab, target, 2)
    ids = [several.join(prompt(500, 1), **GREEDY), several.join(prompt(300, 2), **GREEDY)]
    made = run(several, ids[:1], 100, {})
    assert len(made[ids[0]]) == 13, "500 tokens and 13 in a context of 512, the last one outside the memory"
    several.leave(ids[0])
    assert len(run(several, ids[1:], 5, made)[ids[1]]) == 5


def test_probabilities_are_those_of_a_session(lab: Lab, target: Path) -> None:
    several = session(lab, target, 2)
    ids = [several.join(each, n_top=3, **GREEDY) for each in PROMPTS[:2]]
    step = several.step([(i, 0) for i in ids], 200)
    for each, tokens in zip(step.sequences, PROMPTS, strict=False):
        single = lab.session(lab.context(target, **CONTEXT), **GREEDY)
        single.prefill(tokens)
        single.step()
        expected = single.probabilities(3)
        assert each.probabilities is not None
        for mine, its in zip(each.probabilities, expected, strict=True):
            assert np.allclose(mine, its, atol=1e-4)


def test_a_place_takes_the_state_of_another(lab: Lab, target: Path) -> None:
    """The tokens that follow are the same. A state that does not fit changes nothing."""
    context = lab.context(target, **CONTEXT, n_seq_max=3, kv_unified=True)
    one = _core.ParallelSession(context)
    lab._closing.callback(one.close)
    first = one.join(PROMPTS[0], **GREEDY)
    made = run(one, [first], 4, {})[first]
    place = [number for number, _parked, _tokens in one.held()].index(first)
    with pytest.raises(InputError, match="is in use"):
        one.replace(place, PROMPTS[1], np.zeros(0, np.uint8))
    one.leave(first)
    tokens, state = one.held()[place][2], _core.sequence_state(context, place)
    assert tokens.tolist() == [*PROMPTS[0], *made[:-1]]
    with pytest.raises(InputError, match="does not take the state"):
        one.replace(place, PROMPTS[1], state[:-7])
    assert one.held()[place][2].tolist() == tokens.tolist()
    one.replace(place, np.zeros(0, np.int32), np.zeros(0, np.uint8))
    assert not len(one.held()[place][2])
    one.replace(2, tokens, state)
    again = one.join(PROMPTS[0], **GREEDY)
    assert one.n_reused(again) == len(PROMPTS[0]) - 1
    assert run(one, [again], 4, {})[again] == made


def test_refusals_are_one_line(lab: Lab, target: Path, other: Path) -> None:
    several = {**CONTEXT, "kv_unified": True}
    three, two = lab.context(target, n_seq_max=3, **several), lab.context(other, n_seq_max=2, **several)
    with pytest.raises(InputError, match="2 sequences, expected n_seq_max=3"):
        _core.ParallelSession(three, two, draft_types=["draft-simple"])
    made = session(lab, target)
    with pytest.raises(InputError, match="the prompt is empty"):
        made.join([])
    with pytest.raises(InputError, match="top_p is 2"):
        made.join(PROMPTS[0], top_p=2.0)
    with pytest.raises(InputError, match="1000 tokens, the context holds 512"):
        made.join(prompt(1000))
    assert made.n_joined == 0
    joined = made.join(PROMPTS[0])
    with pytest.raises(InputError, match="two turns"):
        made.step([(joined, 0), (joined, 0)], 0)
    with pytest.raises(InputError, match="draft length is 1"):
        made.step([(joined, 1)], 0)
    with pytest.raises(InputError, match="draft's routes"):
        made.keep_draft_routes(True)
