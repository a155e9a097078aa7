"""One call makes several steps. Their tokens are those of calls of single steps."""

from __future__ import annotations

from pathlib import Path

from tests.session.lab import GREEDY, Lab
from tests.session.several import CONTEXT, PROMPTS, alone, run, session

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library


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
