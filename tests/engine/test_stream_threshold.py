"""From some number of tokens on, a prompt's experts stream through the device. These tests cover the estimate
and the number in force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.config import EngineConfig
from spac.config.values import StreamBatch
from spac.costs import Costs, ExpertCosts
from spac.engine import Engine
from spac.engine.prefill_streaming import PromptStreams, split_s, stream_s, worth_it
from spac.errors import InputError
from tests.engine.conftest import config


@dataclass(frozen=True)
class Layer:
    n_expert: int
    n_used: int
    pool: int
    expert_bytes: int = 1 << 20


def costs_of(*pools: ExpertCosts) -> Costs:
    return Costs(pools, 0.0, 0.0, (1.0,), (1.0,))


TIME = st.floats(0, 1e-3)
UNITS = st.builds(ExpertCosts, *[TIME] * 6)
LAYERS = st.lists(
    st.integers(1, 64).flatmap(lambda n: st.builds(Layer, st.just(n), st.integers(0, n), st.integers(0, 1))),
    min_size=1,
    max_size=4,
)


@given(UNITS, UNITS, LAYERS, st.floats(0, 1), st.integers(50, 400), st.integers(1, 600))
def test_it_is_the_fewest_tokens_for_which_the_cpu_takes_longer(one, other, layers, resident, small, largest):
    costs = costs_of(one, other)
    limit = stream_s(costs, layers, resident)
    whole = split_s(costs, layers, resident, small)
    slower = [
        n
        for n in range(StreamBatch.LEAST, largest + 1)
        if n // small * whole + split_s(costs, layers, resident, n % small) >= limit
    ]
    assert worth_it(costs, layers, resident, small, largest) == (slower[0] if slower else 0)


def test_steps_of_single_tokens_do_not_hide_what_a_prompt_computes():
    """On an H100's host, the fit of a layer's fixed time, reading and computing put most of the 49 µs an
    expert into the fixed time. Prompts of 512 tokens were split for 2.6 s, and streamed in 0.3 s."""
    learned = ExpertCosts(
        cpu_layer_s=70e-6, cpu_expert_s=12e-6, cpu_pair_s=1.2e-6, cpu_pair_only_s=49e-6, device_expert_s=3e-6,
        upload_s=120e-6,
    )  # fmt: skip
    layers, costs = [Layer(128, 8, 0)] * 48, costs_of(learned)
    assert split_s(costs, layers, 0.17, 512) == pytest.approx(2.6, rel=0.1)
    assert worth_it(costs, layers, 0.17, 512, 8192) < 100


class FakeExperts:
    """Experts that record the lengths that they are given."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers, self.lengths = layers, list[int]()
        self.slots = SimpleNamespace(n_slots=0)

    def set_stream_tokens(self, n: int) -> None:
        self.lengths.append(n)


def test_it_follows_the_costs_and_not_their_noise():
    layers = [Layer(128, 8, 0)]
    experts, costs = FakeExperts(layers), Costs.guessed(layers)
    streams = PromptStreams(experts, StreamBatch(), 512, 512)

    def update(link: float) -> int:
        [unit] = costs.experts
        streams.update(costs_of(replace(unit, upload_s=unit.upload_s * link)))
        return streams.tokens

    assert update(1.0) == 81
    assert update(1.05) == 81
    assert "81" in streams.note
    assert update(1.2) == 107
    assert update(9.0) == 0
    assert "split" in streams.note
    assert update(1.0) == 81
    assert experts.lengths == [81, 107, 0, 81]


def test_a_number_is_that_number():
    experts = FakeExperts([Layer(128, 8, 0)])
    streams = PromptStreams(experts, StreamBatch(7), 512, 512)
    for _ in range(2):
        streams.update(Costs.guessed(experts.layers))
    assert streams.tokens == 7
    assert experts.lengths == [7]
    assert streams.note == ""


@pytest.mark.parametrize("written", ["", -1, "a few", 1.5, True, 2**31])
def test_what_is_refused(written):
    with pytest.raises(InputError, match=r"stream_batch: .* is not 'auto', or a number of tokens"):
        EngineConfig(target="model.gguf", stream_batch=written)


def test_the_statistics_say_what_is_in_force(target):
    text = "def double(values):\n    return [2 * value for value in values]\n\n" * 3
    with Engine(config(target)) as engine:  # never, because the device is simulated
        generation = engine.generate(text, 2)
        "".join(generation)
        assert engine._expert_cache.stream_batch == generation.stats.bytes_moved["prompt_uploads"] == 0
        assert not any("prompts:" in note for note in engine.notes)
    with Engine(config(target, stream_batch="auto", deterministic=True, slots=4)) as engine:
        layers = engine.experts.layers
        expected = worth_it(Costs.guessed(layers), layers, 4 / 15, 512, 512)
        generation = engine.generate(text, 2)
        "".join(generation)
        stats = generation.stats
        assert engine._expert_cache.stream_batch == expected >= StreamBatch.LEAST
        assert stats.prompt_tokens > expected
        assert stats.bytes_moved["prompt_uploads"] > 0
        assert sum(str(expected) in note for note in engine.notes) == 1
        counts = engine.experts.stats
        assert stats.bytes_moved["prompt_copies"] == counts["stream_slot_bytes"]
        assert stats.bytes_moved["prompt_uploads"] == counts["stream_bytes"]
