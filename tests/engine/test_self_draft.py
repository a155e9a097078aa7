"""A target drafts for itself: with low-bit copies of its experts, and all else of its own."""

import numpy as np
import pytest

from spac.config import SamplingConfig
from spac.demo import PROMPT, TARGET
from spac.engine import Engine, slots
from spac.errors import InputError, OutOfMemoryError
from spac.machine.device_memory import in_use
from spac.stats.recording import Recorder
from tests.engine.conftest import config as usual
from tests.papers.fidelity import Fidelity

N_LAYER = 5


def config(target=TARGET, temp=0.0, **options):
    sampling = SamplingConfig(temp=temp, seed=3, ignore_eos=True)
    defaults = {"ctx": 256, "slots": "25%", "deterministic": True, "draft_length": 4, "sampling": sampling}
    return usual(target, **{**defaults, **options})


def run(n_tokens=24, recorder=None, **options):
    """Return text, statistics, the copies' bytes, those that were predicted, and the device's use."""
    with Engine(config(**options)) as engine:
        generation = engine.generate(PROMPT, n_tokens, recorder=recorder)
        text = "".join(generation)
        copies, predicted = engine.experts.draft_bytes, engine.experts.draft_copy_bytes(slots.QUANT)
        return text, generation.stats, copies, predicted, in_use("simulated")


@pytest.fixture(scope="module")
def plain():
    """The runs with a draft of equal length that needs no memory: n-grams."""
    return {temp: run(temp=temp, draft_type="ngram-simple") for temp in (0.0, 0.8)}


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_the_text_is_that_without_the_draft(plain, temp):
    text, stats, *_ = run(temp=temp, draft_type="self")
    assert text == plain[temp][0]
    assert stats.acceptance > (0.1 if temp == 0 else 0)
    assert stats.activations == N_LAYER * 4 * (stats.steps + stats.drafted_tokens)


def test_the_copies_are_all_the_memory_that_it_adds(plain):
    *_, copies, predicted, used = run(draft_type="self")
    assert copies == predicted > 0
    assert plain[0.0][2] == 0
    assert used - plain[0.0][4] == copies


def test_its_routers_predict_those_of_the_verification():
    _, stats, *_ = run(scheduler="moe-speq", draft_type="self", recorder=(recorder := Recorder()))
    _, usual, *_ = run(scheduler="logistic", draft_type="self")
    fidelity = Fidelity.of(recorder.demand.draft_routes, recorder.demand.routes)
    assert fidelity.tokens == int((recorder.demand.verified - 1).sum())
    assert fidelity.same.min() > 0.8
    assert stats.hit_rate > usual.hit_rate + 0.05


@pytest.mark.parametrize("family", ["gpt-oss", "deepseek2", "qwen3moe"])
def test_families(tiny_model, family, monkeypatch):
    """Biases, a dense layer with shared experts, and a plain model; q8_0 is nearly the model itself."""
    monkeypatch.setattr(slots, "QUANT", "q8_0")
    path, prompt = tiny_model(family), np.arange(3, 40, dtype=np.int32)
    found = {}
    for draft_type in ("none", "self"):
        settings = config(path, draft_type=draft_type, draft_length=3, swa_full=True)
        with Engine(settings) as engine:
            generation = engine.generate(prompt, 12)
            found[draft_type] = "".join(generation), generation.stats.accepted_tokens
    assert len({text for text, _ in found.values()}) == 1
    assert found["self"][1] > 4


def test_refusals(tiny_model, monkeypatch):
    hybrid, window = tiny_model("qwen3next"), tiny_model("gpt-oss")
    for fault, settings in (
        ("name it alone", {"draft_type": "self,ngram-simple"}),
        ("needs experts on a device", {"device": "cpu"}),
        ("recurrent", {"target": hybrid}),
        ("--swa-full", {"target": window}),
        ("choose one of q4_0", {"quant": "f12"}),
        ("blocks of 256", {"quant": "q2_K"}),
    ):
        monkeypatch.setattr(slots, "QUANT", settings.pop("quant", "q4_0"))
        with pytest.raises(InputError, match=fault) as error:
            run(2, **{"draft_type": "self", **settings})
        assert "\n" not in str(error.value)
    monkeypatch.setattr(slots, "QUANT", "q8_0")
    with pytest.raises(OutOfMemoryError, match="choose another --draft-type"):
        run(2, draft_type="self", vram_limit="16M", slots=8)
