"""A draft with its own experts is wholly on the device if it fits. It comes before the target's slots."""

import pytest

from spac.engine import Engine
from spac.errors import InputError
from tests.engine.conftest import config as usual


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)


@pytest.fixture(scope="module")
def draft(tiny_model):
    return tiny_model("qwen3moe", n_layer=2, n_expert=6, seed=5)


def config(target, **options):
    defaults = {"ctx": 256, "ubatch": 64, "draft_length": 3, "deterministic": True}
    return usual(target, **{**defaults, **options})


def run(settings):
    """Return text, slots of target and draft, the draft's notes, its blocks and those of the device."""
    with Engine(settings) as engine:
        text = "".join(engine.generate("def f(", 24))
        experts = engine._pair.draft_experts
        n_target = engine.experts.slots.n_slots
        stats = experts.stats
        notes = [note for note in engine.notes if note.startswith("draft: ")]
        held = experts.slots
        assert held.n_resident in (0, held.n_slots)
        assert stats["activations"] == 0, "a draft's own experts are no demand"
        return text, (n_target, held.n_slots), notes, (stats["blocks"], stats["blocks_device"])


@pytest.mark.parametrize("scheduler", ["none", "lru"])
def test_all_of_a_draft_is_resident_with_any_scheduler(target, draft, scheduler):
    _, slots, notes, (blocks, on_device) = run(config(target, draft=draft, scheduler=scheduler))
    assert slots == (0 if scheduler == "none" else 9, 12)
    assert notes == []
    assert blocks == on_device > 0
    plain = config(target, draft=None, draft_length=None, scheduler=scheduler)
    with Engine(plain) as engine:
        assert engine._pair.draft_experts is None
        assert "".join(engine.generate("def f(", 24))


def test_where_it_does_not_fit_the_cpu_runs_it(target):
    """The target is its own draft, with 36 experts of its size."""
    roomy = run(config(target, draft=target, vram_limit="64M"))
    small = run(config(target, draft=target, vram_limit="4M"))
    assert roomy[1] == (36, 36)
    assert roomy[2] == []
    assert 0 < small[1][0] < 36
    assert small[1][1] == 0
    assert len(small[2]) == 1
    assert "36 experts do not fit" in small[2][0]
    assert "CPU" in small[2][0]
    assert small[3][1] == 0 < small[3][0]
    assert roomy[0] == small[0]


def test_it_gives_way_to_slots_that_were_asked_for(target):
    beside = run(config(target, draft=target, vram_limit="7M"))[1]
    assert beside[0] < 30
    assert beside[1] == 36
    _, slots, notes, (_, on_device) = run(config(target, draft=target, vram_limit="7M", slots=30))
    assert slots == (30, 0)
    assert notes == ["draft: its experts run on the CPU, to leave room for 30 slots"]
    assert on_device == 0


def test_following_routes_needs_a_draft_that_has_them(target, draft, tiny_model):
    dense = tiny_model("qwen3")
    refused = {
        "has no experts": {"draft": dense},
        "has 2 MoE layers where the target has 3": {"draft": draft},
        "has 6 experts in MoE layer 0 where the target has 12": {
            "draft": tiny_model("qwen3moe", n_expert=6, seed=5)
        },
        "nothing is drafted with a model:": {"draft_length": None},
        "nothing is drafted with a model .--draft-length 0.": {"draft": target, "draft_length": 0},
        "ngram-simple,draft-simple is not draft-simple alone": {
            "draft": target,
            "draft_type": "ngram-simple,draft-simple",
        },
    }
    for fault, options in refused.items():
        with (
            pytest.raises(InputError, match=fault) as refusal,
            Engine(config(target, scheduler="moe-speq", **options)),
        ):
            pass
        line = str(refusal.value)
        assert "\n" not in line
        assert "moe-speq" in line
        assert "--draft" in line
    with Engine(config(target, draft=dense)) as engine:
        text = "".join(engine.generate("def f(", 8))
        with pytest.raises(InputError, match="has no experts"):
            engine.set_scheduler("moe-speq")
        assert "".join(engine.generate("def f(", 8)) == text
