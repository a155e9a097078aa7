"""Invalid combinations are refused with one line, before llama.cpp could abort on them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError, SpacError
from tests.session.lab import GREEDY, Lab, generate, prompt

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

if TYPE_CHECKING:
    from tests.conftest import TinyModel


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"draft_types": ["draft-simpel"]},
            "unknown draft type 'draft-simpel', known are none, draft-simple, .*ngram-cache",
        ),
        ({"draft_types": "draft-simple"}, "draft_types is 'draft-simple', expected a list of str"),
        ({"draft_types": ["draft-simple"]}, "draft-simple needs a draft context"),
        ({"draft_types": ["draft-simple", "draft-mtp"]}, "would share one draft context"),
        ({"draft_types": ["ngram-simple"], "draft_max": 64}, "n_batch of at least 65, it has 64"),
        ({"draft_types": ["ngram-simple"], "draft_max": -1}, "draft_max is -1, expected a value from 0"),
        ({"draft_types": ["ngram-simple"], "ngram_size_n": 0}, "ngram_size_n is 0"),
        ({"draft_types": ["ngram-simple"], "p_min": 2.0}, "p_min is 2"),
        ({"top_p": 1.5}, "top_p is 1.5, expected a value from 0 to 1"),
        ({"temp": float("nan")}, "temp is nan"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0"),
        ({"mirostat": 3}, "mirostat is 3, expected a value from 0 to 2"),
        ({"samplers": ["top_k", "topq"]}, "unknown sampler 'topq', known are"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"logit_bias": {99999: 1.0}}, "logit_bias names token 99999"),
        ({"seed": -1}, "seed is -1, expected an int from 0"),
        ({"temperature": 1.0}, "unknown session parameter 'temperature', known are .*temp"),
    ],
)
def test_parameters(lab: Lab, target: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        lab.session(lab.context(target), **params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", [0, None])
def test_null_contexts(address: int | None) -> None:
    with pytest.raises(InputError, match="null pointer"):
        _core.Session(address)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected the address"):
        _core.Session("context")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="null pointer"):
        _core.vocab_mismatch(0, 0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_ctx": 512, "n_seq_max": 2}, "for 2 sequences, expected n_seq_max=1"),
        ({"n_ctx": 128}, "holds [0-9]+ tokens and the target's 512"),
        ({"n_ctx": 512, "n_batch": 4}, "n_batch of at least 9, it has 4"),
    ],
)
def test_draft_contexts(lab: Lab, target: Path, params: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lab.session(lab.context(target, n_ctx=512), lab.context(target, **params), draft_max=8)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"n_outputs_max": 8},
            "target context has room for 8 rows of logits .n_outputs_max., and 9 are needed",
        ),
        ({"n_outputs_max": 9, "embeddings": True}, "and 64 are needed for a batch with embeddings"),
    ],
)
def test_contexts_with_too_few_rows_of_logits(
    lab: Lab, target: Path, params: dict[str, Any], message: str
) -> None:
    """llama.cpp would end the process at the first batch that wants more."""
    with pytest.raises(InputError, match=message) as caught:
        lab.session(lab.context(target, **params), draft_types=["ngram-simple"], draft_max=8)
    assert "\n" not in str(caught.value)


def test_rows_that_suffice(lab: Lab, target: Path, other: Path) -> None:
    """Few rows are enough for a prompt of several batches, and for the longest verifications."""
    expected = generate(lab.plain(target, **GREEDY), prompt(150), 30)
    context = lab.context(target, n_outputs_max=9)
    for draft in (target, other):
        session = lab.session(context, lab.context(draft, n_outputs_max=1), draft_max=8, **GREEDY)
        assert generate(session, prompt(150), 30) == expected
        session.close()


def test_embeddings_that_come_later(lab: Lab, target: Path) -> None:
    """Embeddings need a row for every token, and the context was made without these rows."""
    context = lab.context(target, n_outputs_max=1)
    session = lab.session(context, **GREEDY)
    expected = generate(session, prompt(20), 10)
    api.llama_set_embeddings(context, True)
    session.reset()
    with pytest.raises(InputError, match=r"room for 1 rows .* 19 are needed for a batch with embeddings"):
        session.prefill(prompt(20))
    api.llama_set_embeddings(context, False)
    assert generate(session, prompt(20), 10) == expected


def test_a_draft_context_that_is_the_targets(lab: Lab, target: Path) -> None:
    context = lab.context(target)
    with pytest.raises(InputError, match="the target's own"):
        lab.session(context, context)


def test_a_refused_session_leaves_the_contexts_usable(lab: Lab, target: Path) -> None:
    context = lab.context(target)
    with pytest.raises(InputError):
        lab.session(context, lab.context(target, n_batch=4))
    assert len(generate(lab.session(context, **GREEDY), prompt(5), 5)) == 5


@pytest.mark.parametrize("kind", ["draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"])
def test_draft_types_that_need_a_special_model(lab: Lab, target: Path, other: Path, kind: str) -> None:
    """An ordinary model as such a draft gives an error, never an abort."""
    with pytest.raises(SpacError):
        lab.session(lab.context(target), lab.context(other), draft_types=[kind])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the prompt is empty"),
        ([1, 2, 272], "token 2 of the prompt is 272, the vocabulary has tokens 0 to 271"),
        ([-1], "token 0 of the prompt is -1"),
        (np.zeros((2, 2), np.int32), r"tokens is int32\[2, 2\], expected int32\[n\]"),
        (np.zeros(3, np.int64), r"tokens is int64\[3\], expected int32\[n\]"),
        (np.zeros(6, np.int32)[::2], r"tokens is int32\[3\] not in C order"),
        ([1.5], "something else than 32-bit integers"),
        ([2**40], "something else than 32-bit integers"),
        (7, "tokens is int, expected"),
    ],
)
def test_prompts(lab: Lab, target: Path, tokens: Any, message: str) -> None:
    session = lab.plain(target)
    with pytest.raises(InputError, match=message):
        session.prefill(tokens)


def test_events_and_calls_out_of_order(lab: Lab, target: Path) -> None:
    session = lab.plain(target)
    with pytest.raises(InputError, match="no prompt: call prefill"):
        session.step()
    with pytest.raises(InputError, match="unknown event 'verify', known are"):
        session.on("verify", print)
    with pytest.raises(InputError, match="expected something to call"):
        session.on("verify_end", 3)  # type: ignore[call-overload]
    session.close()
    session.close()
    for call in (session.step, session.cancel, session.reset, lambda: session.n_past):
        with pytest.raises(InputError, match="is closed"):
            call()


def test_a_session_keeps_its_owner(lab: Lab, target: Path) -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    session = lab.session(lab.context(target), owner=owner)
    del owner
    gc.collect()
    assert alive() is not None
    session.close()
    gc.collect()
    assert alive() is None


def test_a_ring_through_a_callback_is_collected(lab: Lab, target: Path) -> None:
    class Holder:
        def __init__(self, context: int) -> None:
            self.session = _core.Session(context, owner=self)
            self.session.on("verify_end", self.on_step)

        def on_step(self, step: _core.Step) -> None:
            pass

    alive = weakref.ref(Holder(lab.context(target)))
    gc.collect()
    assert alive() is None


def test_vocabularies(lab: Lab, target: Path, tiny_model: TinyModel, tmp_path: Path) -> None:
    model = lab.model(target)
    assert _core.vocab_mismatch(model, lab.model(tiny_model("llama"))) is None
    padded = tiny_model("qwen3", n_vocab=300)
    assert _core.vocab_mismatch(model, lab.model(padded)) is None, "padding within llama.cpp's tolerance"
    larger = _core.vocab_mismatch(model, lab.model(tiny_model("qwen3", n_vocab=1000)))
    assert larger == "the target's vocabulary has 272 tokens, the draft's 1000: they may differ by 128"

    content = target.read_bytes()
    assert content.count("Ġthe".encode()) == 1
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(content.replace("Ġthe".encode(), "Ġtha".encode()))
    reason = _core.vocab_mismatch(model, lab.model(renamed))
    assert reason == "token 261 is 'Ġthe' in the target and 'Ġtha' in the draft"
    with pytest.raises(InputError, match="does not fit the target's: token 261"):
        lab.session(lab.context(target), lab.context(renamed))


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_larger_vocabulary_on_one_side(lab: Lab, target: Path, tiny_model: TinyModel, which: str) -> None:
    """Tokens that the other side does not have are drafted or sampled, and no call fails."""
    padded = tiny_model("qwen3", n_vocab=300)
    paths = (padded, target) if which == "target" else (target, padded)
    bias = {290: 8.0, 295: 8.0} if which == "target" else {}
    sampling: dict[str, Any] = {"temp": 1.0, "top_k": 0, "seed": 4, "logit_bias": bias}
    plain = generate(lab.plain(paths[0], **sampling), prompt(20), 60)
    session = lab.session(lab.context(paths[0]), lab.context(paths[1]), draft_max=4, **sampling)
    assert generate(session, prompt(20), 60) == plain
    assert which == "draft" or {290, 295} & set(plain)
