"""Invalid combinations are refused with one line, before llama.cpp could abort on them."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from tests.session.recurrent import write_mamba

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_p": 1.5}, "top_p is 1.5, expected a value from 0 to 1"),
        ({"temp": float("nan")}, "temp is nan"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0"),
        ({"mirostat": 3}, "mirostat is 3, expected a value from 0 to 2"),
        ({"samplers": ["top_k", "topq"]}, "unknown sampler 'topq', known are"),
        ({"samplers": "top_k"}, "samplers is 'top_k', expected a list of str or None"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "root ::= nothing"}, "the rule 'nothing' is not defined"),
        ({"logit_bias": {99999: 1.0}}, "logit_bias names token 99999"),
        ({"seed": -1}, "seed is -1, expected an int from 0"),
        ({"draft_max": 3}, "unknown sampling parameter 'draft_max', known are chat, dry_"),
    ],
)
def test_sampling(lab, target, params, message):
    with pytest.raises(InputError, match=message) as caught:
        lab.engine(target).loop.generate(np.zeros(1, np.int32), **params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("draft", "options", "message"),
    [
        ("qwen3", {"context_params": {"n_outputs_max": 1}}, "target context has room for 1 rows of .* 9 are"),
        ("qwen3", {"draft_type": "draft-eagle3"}, "draft-eagle3: the draft model names no layers"),
        ("qwen3", {"draft_type": "draft-dflash"}, "draft-dflash: the draft model names no layers"),
        ("qwen3", {"draft_type": "draft-dspark"}, "draft-dspark: the draft model names no layers"),
        ("qwen3", {"draft_type": "draft-mtp"}, "no layers for draft-mtp"),
        ("nomic-bert-moe", {}, "the draft model keeps no memory"),
    ],
)
def test_drafts(lab, target, tiny_model, draft, options, message):
    with pytest.raises(InputError, match=message) as caught:
        lab.engine(target, draft=tiny_model(draft), draft_length=8, device="cpu", **options)
    assert "\n" not in str(caught.value)


def test_a_draft_whose_memory_is_a_state(lab, target, tmp_path):
    with pytest.raises(InputError, match="the draft model's memory is recurrent"):
        lab.engine(target, draft=write_mamba(tmp_path / "mamba.gguf"), device="cpu")


@pytest.mark.parametrize("family", ["llada-moe", "nomic-bert-moe"])
def test_targets_without_a_memory(lab, tiny_model, family):
    with pytest.raises(InputError, match="the target keeps no memory of a sequence"):
        lab.engine(tiny_model(family), device="cpu")


@pytest.mark.parametrize("tokens", [np.zeros((2, 2), np.int32), [2**40]])
def test_tokens(lab, target, tokens):
    with pytest.raises(InputError):
        _core.decode(lab.context(target), tokens, 0, True)


def test_events(lab, target):
    loop = lab.engine(target).loop
    with pytest.raises(InputError, match="unknown event 'verify', known are draft_end, "):
        loop.on("verify", print)
    with pytest.raises(InputError, match="expected something to call"):
        loop.on("verify_end", 3)  # type: ignore[arg-type]
    loop.close()
    with pytest.raises(InputError, match="is closed"):
        loop.on("verify_end", None)


def test_vocabularies(lab, target, tiny_model, tmp_path):
    model = lab.model(target)
    with pytest.raises(InputError, match="null pointer"):
        _core.vocab_mismatch(0, 0)
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
    with pytest.raises(InputError, match=r"does not fit the target .* \(token 261"):
        lab.engine(target, draft=renamed)
