"""The benchmark of prompts' graphs counts bytes over the link, and learns from choices alone."""

from __future__ import annotations

import pytest

from bench.prompt_stream import WAYS, Prompts, compare
from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.prompt_times import Way

N_TOKENS = 1100


@pytest.fixture(scope="module")
def prompts(tiny_model):
    config = EngineConfig(
        target=tiny_model("qwen3moe"), device="simulated", threads=1, ctx=2048, slots=5,
        stream_batch="auto", scheduler="static", governor="fixed", state="off",
    )  # fmt: skip
    with Engine(config) as engine:
        assert engine.experts.settle(10)
        yield Prompts(engine)
    _core.set_simulated_device()


def graph_bytes(prompts):
    """Return the bytes of the experts without slots in the layers that stream.

    The last layer computes one token of a prompt, so it is split.
    """
    experts, slot_of = prompts._engine.experts, prompts._engine.experts.residency()
    return sum(
        layer.expert_bytes * int((slot_of[i, : layer.n_expert] < 0).sum())
        for i, layer in enumerate(experts.layers[:-1])
    )


@pytest.mark.parametrize(
    ("way", "n_graphs"), [(Way(True, 512), 3), (Way(True, 1100), 1), (Way(False, 512), 0)]
)
def test_each_streamed_graph_brings_the_experts_without_slots(prompts, way, n_graphs):
    found = prompts.read(N_TOKENS, way)
    assert found["link_bytes"] == n_graphs * graph_bytes(prompts)
    assert found["graph_tokens"] == way.size
    assert found["prompt_s"] > 0


def test_only_the_engines_own_choice_learns(prompts):
    times = prompts._graphs.times
    for way in WAYS.values():
        before = sum(map(len, times._samples.values()))
        for _ in range(2):  # a piece that changes the buffers is not kept
            prompts.read(N_TOKENS, way)
        assert (sum(map(len, times._samples.values())) > before) == (way is None)


def test_a_row_has_ratios_of_the_medians(prompts):
    row = compare(prompts, 128, 8.0, 0.0, first_s=1.0)
    seconds = {way: figures["prompt_s"] for way, figures in row["ways"].items()}
    better = min(seconds["split"], seconds["512"])
    assert row["repeats"] == 3
    assert row["time_ratio_to_better"] == seconds["chosen"] / better
    assert row["first_prompt_ratio_to_better"] == 1 / better
    assert row["bytes_per_token"]["split"] == 0
    assert row["bytes_per_token"]["512"] == graph_bytes(prompts) / 128
    low, high = row["time_ratio_range"]
    assert low <= row["time_ratio_to_better"] <= high
