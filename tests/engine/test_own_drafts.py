"""Layers of a target draft for it by default, and are left out where they did not pay in the last run."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from spac import _library
from spac.config import EngineConfig, SamplingConfig
from spac.costs import store
from spac.engine import Engine, own_drafts
from spac.errors import InputError
from spac.governor import BatchGovernor, RooflineGovernor
from spac.llama_cpp_python.llama import Llama
from spac.model.gguf.check import check_model
from tools.models import FAMILIES

SMALL = {"slots": 4, "threads": 1, "ctx": 256}
ENDLESS = SamplingConfig(temp=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def mtp(tiny_model) -> Path:
    return tiny_model("glm4moe", n_layer=4, options={"mtp": 1})


@pytest.fixture
def measured(monkeypatch, tmp_path) -> Path:
    """Return the folder of what is measured, which has nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return store.folder()


def test_they_draft_by_default(mtp, measured):
    with Engine(EngineConfig(mtp, **SMALL, sampling=ENDLESS)) as engine:
        assert engine.config.draft_types == ("draft-mtp",)
        assert isinstance(engine.governor, RooflineGovernor)
        generation = engine.generate("def f(", 30)
        list(generation)
    assert generation.stats.drafted_tokens > 0
    assert set(generation.stats.draft_lengths) <= {"0", "1", "2", "3"}
    assert not list(measured.glob("drafts-*")), "30 steps are too few to judge"
    with closing(Llama(str(mtp), n_ctx=256, slots=4, n_threads=1, verbose=False)) as llm:
        assert llm.engine.config.draft_types == ("draft-mtp",)


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({"draft_type": "none"}, ()),
        ({"draft_length": 0}, ()),
        ({"draft_max": 0}, ()),
        ({"deterministic": True}, ()),  # nothing could find out whether they pay
        ({"deterministic": True, "draft_length": 2}, ("draft-mtp",)),
        ({"cpu_expert_layers": 2}, ()),
        ({"draft_type": "ngram-simple"}, ("ngram-simple",)),
        ({"draft": "d.gguf"}, ("draft-simple",)),
    ],
)
def test_what_leaves_them_out(mtp, measured, options, types):
    config = own_drafts.with_own_drafts(EngineConfig(mtp, **options), check_model(mtp), [])
    assert config.draft_types == types


def test_a_file_without_their_weights_has_none(mtp, measured):
    info = check_model(mtp)
    assert info.has_mtp
    bare = replace(info, has_mtp=False)
    assert own_drafts.with_own_drafts(EngineConfig(mtp), bare, []).draft_types == ()


def test_auto_stands_alone():
    with pytest.raises(InputError, match="draft-type auto cannot be used together with others"):
        EngineConfig("m.gguf", draft_type="auto,ngram-simple")


def test_they_are_not_loaded_where_they_did_not_pay(mtp, measured):
    """The random layer is never right, so the governor stops drafting. A week later they may try again."""
    with Engine(EngineConfig(mtp, **SMALL, sampling=ENDLESS)) as engine:
        list(engine.generate("def f(", 140))
        assert engine.governor.about["draft_length"] == 0
    (file,) = measured.glob("drafts-*")
    with Engine(EngineConfig(mtp, **SMALL)) as engine:
        assert engine.config.draft_types == ()
        assert any("--draft-type draft-mtp loads them" in note for note in engine.notes)
        list(engine.generate("def f(", 4))
    assert list(measured.glob("drafts-*")) == [file], "a run without them says nothing about them"
    info, asked = check_model(mtp), EngineConfig(mtp, draft_type="draft-mtp")
    assert own_drafts.with_own_drafts(asked, info, []) is asked
    then = time.time() - own_drafts.RECENT_S - 60
    os.utime(file, (then, then))
    assert own_drafts.with_own_drafts(EngineConfig(mtp), info, []).draft_types == ("draft-mtp",)


@pytest.mark.parametrize(("length", "types"), [(0, ()), (2, ("draft-mtp",))])
def test_the_last_choice_counts(mtp, measured, monkeypatch, length, types):
    info, config = check_model(mtp), EngineConfig(mtp, draft_type="draft-mtp")
    governor = RooflineGovernor(3)
    for n in (0 if length else 2, length):
        monkeypatch.setattr(RooflineGovernor, "about", {"steps": 100, "draft_length": n})
        own_drafts.keep_choice(config, info, governor)
    assert own_drafts.with_own_drafts(EngineConfig(mtp), info, []).draft_types == types


def test_a_draft_model_and_the_own_layers_take_turns(mtp, tiny_model, measured, monkeypatch):
    """The draft model is first, the own layers are second, and the faster of both is third."""
    draft = tiny_model("qwen3moe")
    chosen: list[tuple[str, ...]] = []
    for _ in range(3):
        with Engine(EngineConfig(mtp, draft=draft, **SMALL, sampling=ENDLESS)) as engine:
            chosen.append(engine.config.draft_types)
            assert any(f"in place of {draft.name}" in note for note in engine.notes) == (
                engine.config.draft is None
            )
            list(engine.generate("def f(", 140))
    assert chosen[:2] == [("draft-simple",), ("draft-mtp",)]
    entries = [store.read(path) for path in measured.glob("drafts-*")]
    speeds = {bool(entry.key["draft"]): entry.value["tokens_per_second"] for entry in entries}
    assert len(speeds) == 2
    asked, info = EngineConfig(mtp, draft=draft), check_model(mtp)
    faster = "draft-simple" if speeds[True] >= speeds[False] else "draft-mtp"
    assert own_drafts.with_own_drafts(asked, info, []).draft_types == (faster,)


@pytest.mark.parametrize(
    ("given", "own", "options", "draft"),
    [
        (20.0, 30.0, {}, False),
        (30.0, 20.0, {}, True),
        (None, 30.0, {}, True),  # the user's choice comes first
        (30.0, None, {}, False),
        (20.0, 30.0, {"draft_type": "draft-simple"}, True),
        (20.0, 30.0, {"draft_length": 2}, True),
        (20.0, 30.0, {"scheduler": "sp-moe"}, True),  # reads the draft model's states
    ],
)
def test_the_faster_way_drafts(mtp, tiny_model, measured, monkeypatch, given, own, options, draft):
    path, info, notes = tiny_model("qwen3moe"), check_model(mtp), []
    for speed, config in (
        (given, EngineConfig(mtp, draft=path)),
        (own, EngineConfig(mtp, draft_type="draft-mtp")),
    ):
        if speed is not None:
            about = {"steps": 100, "draft_length": 1, "tokens_per_second": speed}
            monkeypatch.setattr(RooflineGovernor, "about", about)
            own_drafts.keep_choice(config, info, RooflineGovernor(3))
    config = own_drafts.with_own_drafts(EngineConfig(mtp, draft=path, **options), info, notes)
    assert config.draft == (path if draft else None)
    assert config.draft_types == (("draft-simple",) if draft else ("draft-mtp",))
    assert [path.name in note for note in notes] == ([] if draft else [True])


def test_a_steps_time_begins_with_the_step(mtp, measured, monkeypatch):
    """These layers read verified tokens too. A step without a draft does not begin with the last draft."""
    seconds, observe = [], BatchGovernor.observe

    def noted(self, lengths, step, step_s):
        seconds.append(step_s)
        observe(self, lengths, step, step_s)

    monkeypatch.setattr(BatchGovernor, "observe", noted)
    begun = time.perf_counter()
    with Engine(EngineConfig(mtp, **SMALL, draft_type="draft-mtp", sampling=ENDLESS)) as engine:
        for length in (2, 0):
            engine.fix_draft_length(length)
            list(engine.generate("def f(", 40))
    assert len(seconds) > 40
    assert sum(seconds) < time.perf_counter() - begun


def test_what_is_kept_is_of_the_layers_that_were_loaded(mtp, measured, monkeypatch):
    """Runs with and without these layers do not replace what the others keep."""
    monkeypatch.setenv("SPAC_STATE", "auto")
    for draft_type, known in (("none", False), ("draft-mtp", False), ("none", True), ("draft-mtp", True)):
        with Engine(EngineConfig(mtp, **SMALL, draft_type=draft_type, sampling=ENDLESS)) as engine:
            list(engine.generate("def f(", 70))
            assert not [note for note in engine.notes if "cold" in note]
            assert engine._expert_cache.costs.measured == known
    assert len(list(measured.glob("state-*"))) == len(list(measured.glob("costs-*"))) == 2


def versions(engine: Engine) -> int:
    """Return the number of versions that the target's context keeps of a state."""
    library = ctypes.CDLL(str(_library.library_path()))
    return library.llama_n_rs_seq(ctypes.c_void_p(engine._pair.target_context.pointer))


def test_a_state_goes_back_over_refused_drafts(tiny_model, measured):
    """A hybrid keeps versions of its state. Prompts that end earlier or go on elsewhere get their own."""
    path = tiny_model("qwen35moe", FAMILIES["qwen35moe"].default.with_prediction())
    begin = list(range(40, 70))
    prompts = [begin, begin[:-1], begin[:-2], begin[:-3], [*begin[:-2], 33, 34], begin, [*begin, 35]]
    texts = []
    for draft_type, parallel in (("none", 1), ("draft-mtp", 1), ("draft-mtp", 2)):
        drafts = {"draft_type": draft_type, "draft_length": None if draft_type == "none" else 3}
        options = {**SMALL, **drafts, "parallel": parallel}
        with Engine(EngineConfig(path, **options, sampling=ENDLESS)) as engine:
            assert versions(engine) == (3 if draft_type != "none" and parallel == 1 else 0)
            texts.append([])
            for n, prompt in enumerate(prompts):
                generation = engine.generate(prompt, 3 + 5 * (n % 3))
                list(generation)
                texts[-1].append(generation.tokens)
    assert texts[0] == texts[1] == texts[2]
