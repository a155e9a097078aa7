"""Settings check themselves, and their errors name the accepted values."""

from __future__ import annotations

import dataclasses

import pytest

from spac.config import ContextConfig, EngineConfig, SamplingConfig, Slots
from spac.config.fields import help_of, option_fields
from spac.config.values import Adapter
from spac.errors import InputError


@pytest.mark.parametrize(("text", "n_experts", "slots"), [
    ("0", 40, 0), ("7", 40, 7), ("25%", 40, 10), ("0.5", 15, 8), ("100%", 15, 15), ("1.0", 15, 15),
    ("999", 15, 15), (3, 15, 3), (1.0, 15, 15), (0.2, 15, 3),
])  # fmt: skip
def test_slots_are_read_as_written(text, n_experts, slots):
    assert Slots.parse(text).of(n_experts) == slots


def test_slots_that_are_not_given_are_auto():
    assert EngineConfig(target="x.gguf").slots == Slots() == Slots.parse("auto")


@pytest.mark.parametrize(
    "text", ["-1", "101%", "1.5", "many", "", "-0.5", "nan%", float("nan"), True and 2.5]
)
def test_slots_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="slots"):
        Slots.parse(text)


@pytest.mark.parametrize(("settings", "fault"), [
    ({"temp": -1}, "temp must be 0 to 100"), ({"temp": float("nan")}, "temp"),
    ({"top_p": 1.5}, "top_p must be 0 to 1"), ({"top_k": 2.5}, "top_k must be a whole number"),
    ({"seed": 2.5}, "seed must be a whole number"), ({"top_k": "40"}, "top_k"), ({"seed": 2**32}, "seed"),
])  # fmt: skip
def test_sampling_out_of_range_is_refused(settings, fault):
    with pytest.raises(InputError, match=fault):
        SamplingConfig(**settings)


@pytest.mark.parametrize(("settings", "fault"), [
    ({"draft_length": 64}, "draft_length must be 0 to 63"),
    ({"draft_length": 2.5}, "draft_length must be a whole number"), ({"threads": -1}, "threads"),
    ({"scheduler": "belady"}, "lru, static, none"), ({"draft_type": ("guess",)}, "ngram-simple"),
    ({"draft_type": "draft-simple"}, "--draft FILE"),
    ({"draft_min": 9, "draft_length": 8}, "more than draft_length"),
])  # fmt: skip
def test_an_engine_that_cannot_be_is_refused(settings, fault):
    with pytest.raises(InputError, match=fault):
        EngineConfig(target="x.gguf", **settings)


def test_an_engine_needs_a_target():
    with pytest.raises(InputError, match="target"):
        EngineConfig()


def test_an_unknown_key_names_the_known_ones():
    with pytest.raises(InputError, match=r"did you mean 'top_k'.*min_p"):
        SamplingConfig.from_mapping({"topk": 3})
    with pytest.raises(InputError, match=r"has no 'zzzz'\. It knows: "):
        SamplingConfig.from_mapping({"zzzz": 3})
    assert SamplingConfig.from_mapping({"top_k": 3}).top_k == 3


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingConfig().temp = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(("settings", "types"), [
    ({}, ()), ({"draft": "d.gguf"}, ("draft-simple",)), ({"draft": "d.gguf", "draft_length": 0}, ()),
    ({"draft_type": "ngram-simple"}, ("ngram-simple",)),
    ({"draft": "d.gguf", "draft_type": "ngram-mod,draft-simple"}, ("ngram-mod", "draft-simple")),
    ({"draft": "d.gguf", "draft_type": ("none",)}, ()),
])  # fmt: skip
def test_draft_types_follow_from_what_is_given(settings, types):
    assert EngineConfig(target="x.gguf", **settings).draft_types == types


def test_a_list_of_adapters_may_be_longer_than_a_file_name():
    names = [f"adapter-{i}.gguf" for i in range(500)]
    assert [str(each.path) for each in Adapter.parse(",".join(names))] == names


@pytest.mark.parametrize("config", [EngineConfig, ContextConfig, SamplingConfig])
def test_the_docstring_tells_of_every_field(config):
    text = " ".join(config.__doc__.split())
    for item in option_fields(config):
        assert len(item.metadata["help"]) > 10
        told = f" {item.name}: " + ("if False: " if item.metadata["off"] else "")
        assert told + " ".join(help_of(item).split()) in text
