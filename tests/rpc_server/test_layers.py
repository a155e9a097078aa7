"""A model over machines: layers on a server compute what they compute here, bit for bit."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig
from spac.demo import DRAFT, TARGET
from spac.engine import Engine
from spac.errors import InputError
from spac.model.gguf.check import check_model
from spac.model.pair import ModelPair
from spac.model.remote import counts_by_memory, divided
from tests.engine.conftest import config as usual
from tests.engine.conftest import text_of
from tools.models import Shape

PROMPT = "def fib(n):\n"
TOKENS = list(range(5, 45))
N_LAYER = 5


def config(device: str, *, draft: bool = True, **options: object) -> EngineConfig:
    fixed = {"draft": DRAFT if draft else None, "slots": 20, "deterministic": True, "ctx": 256}
    return usual(device=device, **fixed, **options)


def text(engine: Engine, n: int = 24) -> str:
    return text_of(engine, PROMPT, n)


def logits(config: EngineConfig) -> np.ndarray:
    """Return the logits of a prompt of 40 tokens and of one more token, without slots."""
    pair = ModelPair(config, None)
    try:
        pointer = pair.target_context.pointer
        assert _core.decode(pointer, TOKENS, 0, True) == 0
        prompt = _core.logits(pointer, len(TOKENS)).copy()
        assert _core.decode(pointer, [7], len(TOKENS), True) == 0
        return np.vstack([prompt, _core.logits(pointer, 1)])
    finally:
        pair.close()


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_logits_are_those_of_one_machine(server, device):
    here = logits(config(device, draft=False))
    for n in (1, N_LAYER):
        there = logits(config(device, draft=False, rpc=server.address, rpc_layers=n))
        assert np.array_equal(here.view(np.int32), there.view(np.int32)), n


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_texts_are_those_of_one_machine(server, device):
    with Engine(config(device)) as engine:
        wanted = text(engine)
        n_experts = engine.n_experts
    with Engine(config(device, rpc=(server.address,), rpc_layers=(2,))) as engine:
        assert text(engine) == wanted
        assert text(engine) == wanted
        generation = engine.generate(PROMPT, 4)
        assert "".join(generation)
        stats = generation.stats
        assert stats.remote_layers == {server.address: 2}
        assert f"2 layers on {server.address}" in stats.table()
        assert engine.n_experts == n_experts * (N_LAYER - 2) // N_LAYER
        assert sum(f"2 on {server.address}" in note for note in engine.notes) == 1


def test_a_lent_device(start_server):
    """A device computes whole layers, with all their experts in its memory."""
    with Engine(config("cpu")) as engine:
        wanted = text(engine)
    server = start_server(device="simulated")
    with Engine(config("cpu", rpc=server.address, rpc_layers=2)) as engine:
        assert text(engine) == wanted
        assert any("whole and with all their experts" in note for note in engine.notes)


def test_experts_of_layers_that_stay_are_split(server, tiny_model):
    """An odd shape: 3 layers of 5 experts, of which the last two stay."""
    path = tiny_model("qwen3moe", Shape(n_layer=3, n_expert=5))

    def of(**options: object) -> tuple[list[int], int]:
        with Engine(usual(path, slots=4, deterministic=True, ctx=64, **options)) as engine:
            generation = engine.generate([1, 2, 3, 4, 5, 6, 7, 8], 12)
            for _ in generation:
                pass
            return list(generation.tokens), generation.stats.n_experts

    tokens, n_experts = of()
    assert n_experts == 15
    assert of(rpc=server.address, rpc_layers=1) == (tokens, 10)
    # With two layers here, the first one on the CPU, and one there.
    assert of(rpc=server.address, rpc_layers=1, gpu_layers=2) == (tokens, 5)
    assert of(rpc=server.address, rpc_layers=3)[0] == tokens


def test_weights_that_the_server_keeps(start_server, tiny_model, tmp_path, monkeypatch):
    """Tensors of more than 10 MiB are kept, and are not sent again."""
    path = tiny_model("qwen3moe", Shape(n_layer=2, n_embd=512, n_expert=5, n_ff_exp=1100))
    monkeypatch.setenv(env.CACHE_HOME.name, str(tmp_path))
    server = start_server("--cache")

    def tokens(**options: object) -> list[int]:
        with Engine(usual(path, device="cpu", ctx=64, **options)) as engine:
            generation = engine.generate([1, 2, 3, 4, 5], 4)
            for _ in generation:
                pass
            return list(generation.tokens)

    wanted = tokens()
    written = []
    for _ in range(2):
        found = tokens(rpc=server.address, rpc_layers=1)
        assert found == wanted
        files = {each: each.stat() for each in (tmp_path / "spac" / "rpc").iterdir()}
        assert [each.st_size for each in files.values()] == [5 * 512 * 1100 * 4] * 3
        written.append({each: stat.st_mtime_ns for each, stat in files.items()})
    assert written[0] == written[1]


def test_layers_by_memory(server):
    """Without numbers, the server gets its share of both machines' memory: here, of the same one twice."""
    with Engine(config("cpu", rpc=server.address)) as engine:
        assert text(engine, 4)
        [(address, n)] = engine.setting(SamplingConfig()).remote_layers.items()
        assert address == server.address
        assert 1 <= n < N_LAYER


def test_host_memory_needs_no_room_for_layers_there(server):
    info = check_model(TARGET)
    for n in (2, N_LAYER):
        pair = ModelPair(config("cpu", draft=False, rpc=server.address, rpc_layers=n), None)
        try:
            assert pair.placement.remote is not None
            rest = pair.placement.remote.rest(info)
        finally:
            pair.close()
        assert rest.expert_bytes == pytest.approx(info.expert_bytes * (1 - n / N_LAYER), abs=1)
        assert rest.expert_bytes < rest.file_size < info.file_size


def test_one_of_several_devices_here(server, monkeypatch):
    monkeypatch.setenv(env.SIMULATED_DEVICE.name, "memory_mb=64;memory_mb=64")
    monkeypatch.setenv(env.DEVICE.name, "simulated,simulated1")
    with closing(ModelPair(config("auto", draft=False, rpc=server.address, rpc_layers=1), None)) as pair:
        assert "--rpc: of this machine's devices, simulated alone is used" in pair.notes
    _core.set_simulated_device()


def test_more_layers_than_the_model_has(server):
    with pytest.raises(InputError, match=f"rpc_layers: 6 layers, and the model has {N_LAYER}"):
        Engine(config("cpu", rpc=server.address, rpc_layers=6))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("rooms", "here", "counts"),
    [
        ([24 * GIB], 0, (24,)),  # the model does not fit: what fits is there
        ([24 * GIB, 8 * GIB], 8 * GIB, (24, 8)),
        ([24 * GIB], 24 * GIB, (24,)),  # both hold it together: shares of the memory
        ([300 * GIB], 100 * GIB, (36,)),
        ([GIB // 2, 30 * GIB], 0, (0, 30)),
        ([0], 100 * GIB, (0,)),
        ([GIB], 100 * GIB, (1,)),  # less than half a layer's share, and a layer all the same
    ],
)
def test_counts_by_memory(rooms, here, counts):
    assert counts_by_memory(48, GIB, rooms, here) == counts


def test_layers_of_a_server_are_divided_among_its_devices():
    assert divided(7, [1, 1]) in ([3, 4], [4, 3])
    assert divided(8, [3, 1]) == [6, 2]
    assert divided(4, [0.5, 0.5]) == [2, 2]
    assert divided(3, [0, 0]) in ([1, 2], [2, 1])
    assert divided(0, [5]) == [0]
