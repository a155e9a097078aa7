"""Several sequences on one context. Each one's tokens are those of a session on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac import _core
from spac.errors import Cancelled, InputError
from tests.session.lab import GREEDY, Lab, generate, prompt

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

CONTEXT: dict[str, Any] = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 64}
Made = dict[int, list[int]]


def session(
    lab: Lab,
    path: Path,
    n: int = 3,
    *,
    draft: Path | None = None,
    unified: bool = True,
    experts: _core.Experts | None = None,
    size: dict[str, Any] = CONTEXT,
    **params: Any,
) -> _core.ParallelSession:
    """Return a session of `n` sequences that closes before its contexts."""
    several = {**size, "n_seq_max": n, "kv_unified": unified}
    drafts = None if draft is None else lab.context(draft, **several)
    if draft is not None:
        params.setdefault("draft_types", ["draft-simple"])
    made = _core.ParallelSession(lab.context(path, **several), drafts, experts, **params)
    lab._closing.callback(made.close)
    return made


def run(session: _core.ParallelSession, ids: list[int], n: int, made: Made, *, n_prompt: int = 64) -> Made:
    """Step until each of the sequences has `n` tokens more, or has ended."""
    wanted = {i: len(made.setdefault(i, [])) + n for i in ids}
    while wanted:
        step = session.step([(i, session.draft_max) for i in wanted], n_prompt)
        for each in step.sequences:
            each.check()
            made[each.id] += each.tokens.tolist()
            if len(made[each.id]) >= wanted[each.id] or each.reason == "length":
                del wanted[each.id]
    return made


def alone(lab: Lab, path: Path, tokens: Any, n: int, **sampling: Any) -> list[int]:
    """Return the `n` tokens of a session that has the model for itself."""
    return generate(lab.session(lab.context(path, **CONTEXT), **{**GREEDY, **sampling}), tokens, n)


PROMPTS = [prompt(70, 1), prompt(5, 2), prompt(33, 3)]


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


def test_the_batchs_demand_is_the_sum(lab: Lab, moe: Path) -> None:
    context = lab.context(moe, **CONTEXT, n_seq_max=3, kv_unified=True)
    several = _core.ParallelSession(context, None, lab.experts(moe))
    lab._closing.callback(several.close)
    ids = [several.join(each, **GREEDY) for each in PROMPTS]
    step = several.step([(i, 0) for i in ids], 200)
    experts = lab.experts(moe)
    assert experts is not None
    n_used = max(layer.n_used for layer in experts.layers)
    assert step.verified
    assert step.batch.n_verified == 3
    assert (step.batch.demand.sum(axis=1) == 3 * n_used).all()
    several.close()
    expected = np.zeros_like(step.batch.demand)
    for tokens in PROMPTS:
        single = lab.session(lab.context(moe, **CONTEXT), None, experts, **GREEDY)
        single.prefill(tokens)
        expected += single.step().demand
        single.close()
    assert (step.batch.demand == expected).all()


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
        parked |= {i for i in ids if several.is_parked(i)}
    assert parked == {ids[2]}
    assert n_waits > 0
    assert len(made[ids[0]]) == len(made[ids[1]]) == 60
    several.leave(ids[0])
    run(several, ids[1:], 30, made)
    assert not several.is_parked(ids[2])
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


TEXTS = [prompt(n, n) for n in (3, 40, 90, 41, 150, 7)]
Actions = list[tuple[str, int]]
Do = dict[str, Callable[[int], object]]
Said = list[tuple[int, list[int]]]


def follow(several: _core.ParallelSession, actions: Actions, longest: int, other: Do) -> Said:
    """Join, leave, step and cancel as the actions say, and return what each prompt's sequences said.

    A step drafts up to `longest` tokens. `other` has what further actions do.
    """
    said: Said = []
    made: dict[int, list[int]] = {}
    present: list[int] = []
    cancelled = False
    for action, number in actions:
        if action == "join" and len(present) < several.n_sequences:
            present.append(several.join(TEXTS[number], **GREEDY))
            made[present[-1]] = []
            said.append((number, made[present[-1]]))
        elif action == "leave" and present:
            several.leave(present.pop(number % len(present)))
        elif action == "cancel":
            several.cancel()
            cancelled = True
        elif action == "step":
            turns = [(i, number % (longest + 1)) for i in present]
            if cancelled:
                cancelled = False
                with pytest.raises(Cancelled):
                    several.step(turns, 30)
                continue
            for each in several.step(turns, 30).sequences:
                each.check()
                made[each.id] += each.tokens.tolist()
        elif action in other:
            other[action](number)
    assert several.n_joined == len(present)
    return said


def compare(lab: Lab, path: Path, said: Said) -> None:
    """Check that each sequence said what it says alone. The longest answer to each prompt is made once."""
    kept: dict[Any, list[int]] = lab.__dict__.setdefault("kept", {})
    for number, tokens in said:
        key = (number, path)
        if len(kept.get(key, ())) < len(tokens):
            kept[key] = alone(lab, path, TEXTS[number], 2 * len(tokens))
        assert tokens == kept[key][: len(tokens)] if tokens else True


def actions(*kinds: str, least: int, most: int) -> st.SearchStrategy[Actions]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 5)), min_size=least, max_size=most)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions("join", "leave", "step", "step", "step", least=5, most=40))
def test_whoever_joins_and_leaves_each_says_what_it_says_alone(
    lab: Lab, target: Path, other: Path, actions: Actions
) -> None:
    """Three places share a memory of 256 tokens, which is often full. Every text is then compared."""
    with session(lab, target, draft=other, size={**CONTEXT, "n_ctx": 256}, draft_max=2) as several:
        said = follow(several, actions, 2, {})
    compare(lab, target, said)


def test_a_draft_without_room_drafts_for_the_oldest(lab: Lab, target: Path, other: Path) -> None:
    """The target shares a common beginning, so its memory of 256 tokens holds two texts of 150, and more.

    The draft's memory shares nothing, and holds one of them.
    """
    with session(lab, target, draft=other, size={**CONTEXT, "n_ctx": 256}, draft_max=2) as several:
        said = follow(several, [("join", 4), *[("step", 2)] * 6, ("join", 4), *[("step", 2)] * 6], 2, {})
        ids = [0, 1]
        step = several.step([(each, 2) for each in ids], 30)
        drafted = {each.id: each.n_drafted for each in step.sequences}
        assert (drafted[0] > 0, drafted[1]) == (True, 0)
        several.leave(0)
        assert several.step([(1, 2)], 30).sequences[0].n_drafted > 0, "there is room now"
    compare(lab, target, said)


def faults(lab: Lab, moe: Path, actions: Actions, separate: bool) -> int:
    """Follow actions among which slots move and copies fail. Return the number of copies that failed."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    shape = (experts.n_layer, experts.n_expert)
    if not experts.slots.n_slots:
        experts.attach_slots(shape[0] * shape[1] // 3)
    rng, before = np.random.default_rng(len(actions)), experts.stats["upload_failures"]
    do: Do = {
        "replan": lambda _: experts.submit(
            rng.integers(0, 100, shape).astype(np.int32), np.zeros(shape[0], np.int32)
        ),
        "fail": lambda number: _core.set_simulated_device(fail_uploads=number),
        "settle": lambda _: experts.settle(10),
    }
    with session(lab, moe, experts=experts, size={**CONTEXT, "n_ctx": 256}, separate=separate) as several:
        said = follow(several, actions, 0, do)
    _core.set_simulated_device()
    assert experts.settle(10)
    compare(lab, moe, said)
    return experts.stats["upload_failures"] - before


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions("join", "leave", "step", "step", "step", "cancel", "replan", "fail", least=8, most=30),
       st.booleans())  # fmt: skip
def test_cancelled_steps_and_copies_that_fail_change_no_text(
    lab: Lab, moe: Path, actions: Actions, separate: bool
) -> None:
    """Slots move between steps, some copies fail, and the memory of 256 tokens is often full."""
    faults(lab, moe, actions, separate)


def test_copies_do_fail(lab: Lab, moe: Path) -> None:
    moved: Actions = [("fail", 2), ("replan", 0), ("settle", 0), ("step", 0)]
    assert faults(lab, moe, [("join", 1), ("join", 0), ("step", 0), *moved, *moved, ("step", 0)], False) > 0


def test_drafts_leave_and_come_back_between_steps(lab: Lab, target: Path) -> None:
    """The sequences stay, and each says what it says alone."""
    again = lab.context(target, **CONTEXT, n_seq_max=2, kv_unified=True)
    with session(lab, target, 2, draft=target, draft_max=3) as several:
        with pytest.raises(InputError, match="not dropped"):
            several.resume_drafts(again)
        ids = [several.join(each, **GREEDY) for each in PROMPTS[:2]]
        made = run(several, ids, 8, {})
        several.drop_drafts()
        assert several.draft_max == 0
        with pytest.raises(InputError, match="draft length is 1"):
            several.step([(ids[0], 1)], 0)
        run(several, ids, 8, made)
        several.resume_drafts(again)
        step = several.step([(i, 3) for i in ids], 0)
        assert step.batch.n_drafted == step.batch.n_accepted == 6
        for each in step.sequences:
            made[each.id] += each.tokens.tolist()
    for i, tokens in zip(ids, PROMPTS, strict=False):
        assert made[i] == alone(lab, target, tokens, len(made[i]))


def test_each_sequence_has_the_counts_of_its_own_experts(lab: Lab, moe: Path) -> None:
    """One sequence alone has all counts of a step. Those of several add up, but for experts in common."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    if not experts.slots.n_slots:
        experts.attach_slots(experts.n_layer * experts.n_expert // 3)
    experts.submit(
        np.full((experts.n_layer, experts.n_expert), 9, np.int32), np.zeros(experts.n_layer, np.int32)
    )
    assert experts.settle(10)
    with session(lab, moe, experts=experts, draft=moe, draft_max=2) as several:
        ids = [several.join(each, **GREEDY) for each in PROMPTS]
        for turns in ([(ids[0], 2)], [(ids[0], 2), (ids[1], 0), (ids[2], 1)]):
            several.step([(i, 0) for i in ids], 200)
            before = dict(experts.stats)
            step = several.step(turns, 0)
            after = experts.stats
            total = {name: after[name] - before[name] for name in step.sequences[0].experts}
            own = [each.experts for each in step.sequences]
            summed = {name: sum(each[name] for each in own) for name in total}
            assert total["activations"] == summed["activations"] > total["activations_hit"] > 0
            assert total["activations_hit"] == summed["activations_hit"]
            assert all(each["distinct"] == each["distinct_hit"] + each["misses_cpu"] for each in own)
            assert summed["distinct"] >= total["distinct"]
            if len(turns) == 1:
                assert own == [total]
            sizes = [1 + each.n_drafted for each in step.sequences]
            assert [each["activations"] for each in own] == [
                n * sum(layer.n_used for layer in experts.layers) for n in sizes
            ]


def test_a_prompts_end_and_its_graphs(lab: Lab, moe: Path) -> None:
    """The listener is asked for the size of graphs, and shown the routes of each prompt's last tokens."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    texts = (prompt(200, 1), prompt(120, 2))
    expected = [alone(lab, moe, each, 8) for each in texts]
    alone_tails = []
    for each in texts:
        single = lab.session(lab.context(moe, n_ctx=512, n_batch=256, n_ubatch=256), None, experts, **GREEDY)
        single.on("prompt_tail", lambda: alone_tails.append(experts.routes()))
        single.prefill(each)
        single.close()
    asked: list[tuple[int, int]] = []
    pieces: list[int] = []
    tails: list[Any] = []

    def choose(n_pending: int, n_failed: int) -> int:
        asked.append((n_pending, n_failed))
        return n_pending

    context = lab.context(moe, **{**CONTEXT, "n_ctx": 1024, "n_batch": 512}, n_seq_max=2, kv_unified=True)
    with _core.ParallelSession(context, None, experts) as several:
        several.on("prompt_graph", choose)
        several.on("prompt_piece", lambda n, _past, _ns: pieces.append(n))
        several.on("prompt_tail", lambda: tails.append(experts.routes()))
        ids = [several.join(each, **GREEDY) for each in texts]
        made = run(several, ids, 8, {}, n_prompt=512)
    assert asked == [(318, 0)]
    assert pieces == [318], "both prompts in one graph"
    assert len(tails) == 2, "both end in it"
    for found, wanted in zip(tails, alone_tails, strict=True):
        assert found.shape == wanted.shape == (experts.n_layer, 32, found.shape[2])
        assert (found[:-1] == wanted[:-1]).all(), "the last layer computes no prompt"
    assert [made[i][:8] for i in ids] == expected


def test_a_call_of_several_steps_makes_the_tokens_of_single_ones(lab: Lab, moe: Path) -> None:
    """It ends with `n_most` steps, and `verify_end` is called after each of them."""
    lab.model(moe)
    several = session(lab, moe, experts=lab.experts(moe))
    seen: list[int] = []
    several.on("verify_end", lambda step: seen.append(int(step.demand.sum())))
    ids = [several.join(each, **GREEDY, ignore_eos=True, n_top=2) for each in PROMPTS]
    made = run(several, ids, 1, {})
    n_before, n_calls = len(seen), 0
    for n_most, n in ((7, 7), (1, 1), (12, 12)):
        step = several.step([(i, 0) for i in ids], 0, seconds=60.0, n_most=n_most)
        n_calls += n
        assert step.batch.n_steps == n
        assert step.batch.n_verified == n * len(ids)
        for each in step.sequences:
            assert each.n_steps == len(each.tokens) == n
            assert each.probabilities is not None
            assert [len(part) for part in each.probabilities] == [n] * 3
            assert each.experts["activations"] * len(ids) == sum(seen[-n:])
            made[each.id] += each.tokens.tolist()
    assert len(seen) - n_before == n_calls
    for i, tokens in zip(ids, PROMPTS, strict=True):
        expected = alone(lab, moe, tokens, len(made[i]), ignore_eos=True)
        assert made[i] == expected


def test_a_call_of_several_steps_ends_where_somebody_has_to_look(lab: Lab, target: Path) -> None:
    several = session(lab, target, size={**CONTEXT, "n_ctx": 256})
    first = several.join(PROMPTS[0], **GREEDY, ignore_eos=True)
    made = run(several, [first], 1, {})
    several.hand_over()
    assert several.step([(first, 0)], 0, seconds=60.0, n_most=50).batch.n_steps == 1, "it was asked to return"
    assert several.step([(first, 0)], 0, n_most=50).batch.n_steps == 1, "there was no time for a second step"
    several.on("verify_end", lambda _step: several.hand_over())
    assert several.step([(first, 0)], 0, seconds=60.0, n_most=50).batch.n_steps == 1, "from within"
    several.on("verify_end", None)
    second = several.join(PROMPTS[1], **GREEDY, ignore_eos=True)
    assert several.step([(first, 0), (second, 0)], 1, seconds=60.0, n_most=50).batch.n_steps == 1, "a prompt"
    several.leave(second)
    full = several.step([(first, 0)], 0, seconds=60.0, n_most=500).sequences[0]
    assert full.reason == "length"
    assert len(PROMPTS[0]) + len(made[first]) + 4 + full.n_steps == several.n_ctx + 1
    end = api.llama_vocab_eos(api.llama_model_get_vocab(lab.model(target)))
    one = lab.session(lab.context(target, **CONTEXT), **GREEDY, logit_bias={end: 1000.0})
    one.prefill(PROMPTS[1])
    step = one.step(seconds=60.0, n_most=50)
    assert (step.reason, step.tokens.tolist(), step.n_steps) == ("stop", [end], 1)


def test_a_session_makes_several_steps_a_call(lab: Lab, target: Path) -> None:
    one = lab.session(lab.context(target, **CONTEXT), **GREEDY, ignore_eos=True)
    one.prefill(PROMPTS[0])
    made: list[int] = []
    for n_most in (1, 9, 30):
        step = one.step(seconds=60.0, n_most=n_most)
        assert step.n_steps == step.n_verified == len(step.tokens) == n_most
        made += step.tokens.tolist()
    assert made == alone(lab, target, PROMPTS[0], 40, ignore_eos=True)
