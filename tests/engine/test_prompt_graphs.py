"""Prompts run in few large graphs where memory allows, with the bits of a context that was made for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine, prompt_graphs
from spac.engine.prompt_graphs import PromptGraphs
from spac.errors import InputError
from tests.engine.conftest import config as usual
from tests.engine.conftest import memory
from tests.engine.replay import Recording, replay
from tools.compare import Settings

PROMPT = (np.arange(1201) * 7 % 253).astype(np.int32)
N_TOKENS = 12
PLAIN = {"flash_attn_type": 0}
SMALL, WHOLE = 512, 1280  # tokens of a graph: the context's, and the buffers for all of the prompt


def config(target, **options):
    defaults = {"ctx": 2048, "scheduler": "static", "slots": 5, "stream_batch": 64, "context_params": PLAIN}
    return usual(target, **{**defaults, **options})


class Streams(SimpleNamespace):
    """Prompts stream from `tokens` tokens on. A `share` of the experts is in slots."""

    share, graph_s = 0.5, 1.0


def run(engine, prompt=PROMPT):
    """Return the tokens that follow a prompt, the last step's probabilities, and the tokens of the graphs."""
    assert engine.experts.settle(10)
    sequence = engine.sequence({"temp": 0.0, "ignore_eos": True}, N_TOKENS, n_top=3)
    sequence.prefill(prompt)
    tokens = [int(sequence.step().tokens[0]) for _ in range(N_TOKENS)]
    sequence.finish()
    return tokens, sequence.probabilities(3)[2], engine._pair.target_context.graph_tokens


@pytest.fixture(scope="module")
def in_small_graphs(target):
    with Engine(config(target, ubatch=SMALL)) as engine:
        return run(engine), engine.experts.stats


def test_one_graph_gives_the_stock_librarys_text(target, in_small_graphs, reference_lib, tmp_path):
    with Engine(config(target, ubatch=2048)) as engine:
        tokens, probabilities, _ = run(engine)
    settings = Settings(n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=1, flash_attn=False)
    recording = Recording(str(target), PROMPT.tolist(), [[]] * N_TOKENS)
    assert replay(recording, settings, reference_lib, tmp_path)["tokens"][:N_TOKENS] == tokens
    with Engine(config(target)) as engine:
        found = run(engine)
        assert found[0] == tokens
        assert np.array_equal(found[1], probabilities)
        assert found[2] == WHOLE
        (_, _, small), stats = in_small_graphs
        assert small == SMALL
        assert stats["blocks_streamed"] == 3 * engine.experts.stats["blocks_streamed"] > 0
        assert stats["stream_bytes"] == 3 * engine.experts.stats["stream_bytes"]
        # A prompt of similar length finds its buffers, and a short one does not need them.
        made = memory().n_device_buffers
        engine.forget()
        assert run(engine, PROMPT[:-50])[2] == WHOLE
        engine.forget()
        assert run(engine, PROMPT[:300])[2] == WHOLE
        assert memory().n_device_buffers == made
        # Small graphs are as small as before, in the larger buffers.
        engine.loop.on("prompt_graph", lambda _pending, _failed: SMALL)
        before = engine.experts.stats
        engine.forget()
        again = run(engine)
        assert again[0] == in_small_graphs[0][0]
        assert np.array_equal(again[1], in_small_graphs[0][1])
        assert engine.experts.stats["blocks_streamed"] - before["blocks_streamed"] == stats["blocks_streamed"]
    assert memory().used == 0


def test_a_large_graph_that_does_not_stream_is_split(target):
    """A graph that was expected to stream gets staging when it does not."""
    with Engine(config(target, ubatch=2048, stream_batch=0)) as engine:
        expected = run(engine)
    with Engine(config(target)) as engine:

        def choose(_pending, _failed):
            engine.experts.set_stream_tokens(2000)
            return 1250

        engine.loop.on("prompt_graph", choose)
        found = run(engine)
        assert engine.experts.stats["blocks_streamed"] == 0
    assert found[0] == expected[0]
    assert np.array_equal(found[1], expected[1])


def test_without_memory_graphs_stay_small(target, in_small_graphs):
    (tokens, probabilities, _), _ = in_small_graphs
    with Engine(config(target)) as engine:
        _core.set_memory_limit("simulated", memory().used + (256 << 10))
        found = run(engine)
        assert found[0] == tokens
        assert np.array_equal(found[1], probabilities)
        assert found[2] == SMALL
        assert not any("no memory for graphs" in note for note in engine.notes)


@pytest.mark.parametrize("where", ["buffers", "staging"])
def test_a_prompt_that_runs_out_of_memory_goes_on_in_small_graphs(target, in_small_graphs, where):
    (tokens, probabilities, _), _ = in_small_graphs
    with Engine(config(target, **({"stream_batch": 0} if where == "staging" else {}))) as engine:
        graphs = PromptGraphs(engine._pair.target_context, engine.devices, Streams(tokens=64), engine.notes)
        graphs.measure()
        graphs._that_fits = lambda: graphs._most  # it has been misled about what is free
        engine.loop.on("prompt_graph", graphs.choose)
        n_bytes = graphs.memory.more("simulated", WHOLE) if where == "staging" else 0
        if where == "staging":  # no memory is left for the weight stream, nor for the rows of a split graph
            engine.experts.set_stream_tokens(64)
        _core.set_memory_limit("simulated", memory().used + n_bytes + (8 << 10))
        found = run(engine)
        assert found[0] == tokens
        assert np.array_equal(found[1], probabilities)
        assert found[2] == SMALL
        assert memory().peak <= memory().limit
        assert sum("has no memory for graphs of 1201 tokens" in note for note in engine.notes) == 1


def test_slots_leave_memory_to_graphs(tiny_model, monkeypatch):
    """The slots of `auto` take less, and the prompt's buffers fit beside them."""
    monkeypatch.setattr(prompt_graphs, "ROOM_SHARE", 0.5)  # the model is small beside its buffers
    target = tiny_model("qwen3moe", n_expert=24, n_ff_exp=128)

    def found(**options):
        chosen = config(target, slots="auto", vram_limit="14M", context_params={}, **options)
        with Engine(chosen) as engine:
            n_slots, n_tokens = engine.experts.slots.n_slots, run(engine)[2]
            engine.set_slots(3)
            engine.set_slots("auto")  # the buffers of the prompt stay
            assert engine.experts.slots.n_slots == n_slots
            assert memory().peak <= memory().limit
            return n_slots, n_tokens

    n_slots, small = found(ubatch=SMALL)
    fewer, large = found()
    assert 0 < fewer < n_slots < 72
    assert small == SMALL < large
    assert found(deterministic=True) == (n_slots, SMALL)


class Graphs(PromptGraphs):
    def __init__(self, fits: int, least: int, share: float = 0.5) -> None:
        context = SimpleNamespace(graph_tokens=SMALL, batch_tokens=8192)
        self.fits, self.notes = fits, list[str]()
        device = SimpleNamespace(name="GPU0")
        super().__init__(context, [device], Streams(tokens=least, share=share), self.notes)

    def _that_fits(self) -> int:
        return min(self.fits, self._most)


@pytest.mark.parametrize(
    ("n_pending", "fits", "least", "size"),
    [
        (600, 8192, 64, 600),
        (8192, 8192, 64, 8192),
        (8193, 8192, 64, 4097),  # two equal graphs
        (5000, 2048, 64, 1667),
        (1000, 8192, 1000, 1000),
        (999, 8192, 1000, SMALL),  # graphs of so few tokens do not stream
        (5000, 8192, 0, SMALL),  # nothing streams
        (300, 8192, 64, SMALL),
    ],
)
def test_graphs_are_few_and_equal(n_pending, fits, least, size):
    assert Graphs(fits, least).choose(n_pending, 0) == size


def test_after_a_failure_graphs_are_half_as_large():
    assert Graphs(8192, 64, share=1.0).choose(5000, 0) == SMALL, "all experts are resident"
    graphs = Graphs(8192, 64)
    assert graphs.choose(6000, 0) == 6000
    assert graphs.choose(6000, 6000) == 2000
    assert graphs.choose(9000, 0) == 2250
    assert graphs.choose(9000, 1100) == SMALL
    assert [note.split(";")[0] for note in graphs.notes] == [
        f"prompts: GPU0 has no memory for graphs of {n} tokens" for n in (6000, 1100)
    ]


@pytest.mark.parametrize("written", ["", 0, "-1", "a few", 1.5, True, 2**16 + 1])
def test_what_is_refused(written):
    with pytest.raises(InputError, match=r"ubatch: .* is not 'auto', or a number of tokens"):
        EngineConfig(target="model.gguf", ubatch=written)
