"""Layers on a server that splits them: bit for bit those of one machine, with slots that move there."""

from __future__ import annotations

import dataclasses
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import DeviceError
from spac.model.pair import ModelPair
from spac.model.remote import LayerCost
from tests.rpc_server.conftest import Server, receive
from tests.rpc_server.test_layers import N_LAYER, PROMPT, TOKENS, config, text
from tests.rpc_server.test_program import DEVICE_COUNT, HELLO, connect
from tools.models import Shape

SPLIT = 0xB5
"""The command of spac's by which a client takes the offer to split."""
SUMMARY = (
    r"(\d+) layers with (\d+) experts were split here: ([\d.]+)% of ([\d,]+) activations hit slots, and (\d+)"
)
GIB = 1 << 30


@pytest.fixture(scope="module")
def splitting() -> Iterator[Server]:
    """Return a server with 10 slots, for one client after the other."""
    server = Server("--slots", "10", device="simulated")
    yield server
    server.end()


def numbers(server: Server) -> tuple[int, int, float, int, int]:
    """Return the numbers of a client's summary, and forget the lines up to it."""
    found = server.wait_for(SUMMARY)
    server.lines.clear()
    layers, experts, share, activations, copies = (each.replace(",", "") for each in found.groups())
    return int(layers), int(experts), float(share), int(activations), int(copies)


def settled(pair: ModelPair, n: int) -> list[np.ndarray]:
    """Return the logits of a prompt of 40 tokens and of n more tokens, with time for copies in between."""
    pointer, rows = pair.target_context.pointer, []
    assert _core.decode(pointer, TOKENS, 0, True) == 0
    rows.append(_core.logits(pointer, len(TOKENS)).copy())
    for i in range(n):
        assert _core.decode(pointer, [(7 * i) % 90 + 5], len(TOKENS) + i, True) == 0
        rows.append(_core.logits(pointer, 1).copy())
        time.sleep(0.01)
    return rows


@pytest.mark.parametrize(("device", "n_layers"), [("cpu", 3), ("simulated", 2), ("simulated", N_LAYER)])
def test_logits_are_those_of_one_machine(start_server, device, n_layers):
    """Residency changes between the tokens, and no bit of a logit does."""
    server = start_server("--slots", "10", "--scheduler", "lru", device="simulated")
    found = []
    for more in ({}, {"rpc": server.address, "rpc_layers": n_layers}):
        pair = ModelPair(config(device, draft=False, **more), None)
        try:
            found.append(settled(pair, 30))
        finally:
            pair.close()
    for here, there in zip(*found, strict=True):
        assert np.array_equal(here.view(np.int32), there.view(np.int32))
    layers, _, share, activations, copies = numbers(server)
    assert layers == n_layers
    assert activations >= 30 * n_layers
    assert 0 < share < 100
    assert copies > 10  # more than there are slots, so some were evicted


def test_texts_are_those_of_one_machine(splitting):
    with Engine(config("simulated")) as engine:
        wanted = [text(engine), text(engine)]
        n_experts = engine.n_experts
    with Engine(config("simulated", rpc=splitting.address, rpc_layers=3)) as engine:
        assert [text(engine), text(engine)] == wanted
        assert engine.n_experts == n_experts * (N_LAYER - 3) // N_LAYER
        [note] = [note for note in engine.notes if "--rpc: of" in note]
        assert f"3 on {splitting.address} (from layer 0), with their experts' slots there" in note
        generation = engine.generate(PROMPT, 4)
        assert "".join(generation)
        assert generation.stats.remote_layers == {splitting.address: 3}
    assert numbers(splitting)[:2] == (3, 96)


@pytest.mark.parametrize(
    ("family", "shape"),
    [("qwen3moe", Shape(n_layer=3, n_expert=5)), ("gpt-oss", Shape(n_layer=3, n_expert=5))],
)
def test_odd_shapes_one_after_the_other(splitting, tiny_model, family, shape):
    """Each model gets slots of its own on the same server, with biases where it has them."""
    path = tiny_model(family, shape)

    def tokens(**more: object) -> list[int]:
        options = {"device": "cpu", "threads": 1, "ctx": 64, "sampling": SamplingConfig(temp=0.0), **more}
        with Engine(EngineConfig(path, **options)) as engine:
            generation = engine.generate([1, 2, 3, 4, 5, 6, 7, 8], 12)
            for _ in generation:
                pass
            return list(generation.tokens)

    assert tokens(rpc=splitting.address, rpc_layers=2) == tokens()
    assert numbers(splitting)[:2] == (2, 10)


def test_several_devices_and_memory_that_comes_back(start_server, monkeypatch):
    """Two devices of a server share its layers. A client's slots and stores are free when it has left."""
    monkeypatch.setenv(env.SIMULATED_DEVICE.name, "memory_mb=64;memory_mb=64")
    server = start_server("--slots", "20", device="simulated,simulated1")

    def free() -> list[int]:
        host, port = server.address.rsplit(":", 1)
        return [each.memory_free for each in _core.RemoteServer(host, int(port)).devices]

    before = free()
    assert len(before) == 2
    with Engine(config("cpu")) as engine:
        wanted = text(engine)
    for _ in range(2):
        with Engine(config("cpu", rpc=server.address, rpc_layers=4)) as engine:
            assert text(engine) == wanted
            assert text(engine) == wanted
        layers, experts, share, _, copies = numbers(server)
        assert (layers, experts) == (4, 4 * 32)
        assert share > 0
        assert copies > 0
        assert free() == before


def test_slots_make_room(start_server, monkeypatch):
    """Slots take what is left of a device. A longer prompt then needs some of it for its rows."""
    monkeypatch.setenv(env.SIMULATED_DEVICE.name, "memory_mb=21")
    server = start_server("--slots", "96", device="simulated")
    whole, texts = dataclasses.replace(config("cpu", draft=False), ctx=1024), []
    for each in (whole, dataclasses.replace(whole, rpc=server.address, rpc_layers=3)):
        with Engine(each) as engine:
            texts.append([text(engine), "".join(engine.generate(PROMPT * 60, 8)), text(engine)])
    assert texts[0] == texts[1]
    n_slots = int(server.wait_for(r"slots: (\d+) instead, for the client needed memory")[1])
    assert 0 < n_slots < 96
    assert numbers(server)[4] > 96


def test_a_server_of_whole_layers(start_server):
    """It is like llama.cpp's: its greeting offers nothing, and the layers there are plain."""
    server = start_server("--whole-layers", device="simulated")
    with Engine(config("cpu")) as engine:
        wanted = text(engine)
    with Engine(config("cpu", rpc=server.address, rpc_layers=2)) as engine:
        assert text(engine) == wanted
        assert any("whole and with all their experts" in note for note in engine.notes)
    server.wait_for("left")
    assert not any("split here" in line for line in server.lines)


def test_experts_that_the_host_memory_there_cannot_hold(splitting, monkeypatch):
    """The layers are whole then, on a device that could split others."""
    monkeypatch.setattr("spac.model.remote._STORE_SHARE", 0)
    with Engine(config("cpu", draft=False)) as engine:
        wanted = text(engine)
    with Engine(config("cpu", draft=False, rpc=splitting.address, rpc_layers=2)) as engine:
        assert text(engine) == wanted
        assert any("whole and with all their experts" in note for note in engine.notes)


def test_prompts_that_stream(start_server):
    """The first prompt is split, and later ones stream: all as on one machine."""
    server = start_server("--slots", "10", "--stream-batch", "32", device="simulated")
    found = []
    for more in ({}, {"rpc": server.address, "rpc_layers": 3}):
        pair = ModelPair(config("cpu", draft=False, **more), None)
        pointer, rows = pair.target_context.pointer, []
        try:
            for start in (0, 80, 160):
                assert _core.decode(pointer, 2 * TOKENS, start, True) == 0
                rows.append(_core.logits(pointer, 2 * len(TOKENS)).copy())
                time.sleep(0.05)
        finally:
            pair.close()
        found.append(np.vstack(rows))
    assert np.array_equal(found[0].view(np.int32), found[1].view(np.int32))
    server.wait_for(r"[1-9]\d* layers of prompts were streamed")


def test_a_client_that_does_not_know_it(splitting):
    """It sees the devices alone, unless it takes the offer."""
    with connect(splitting) as client:
        client.sendall(struct.pack("<BQ", DEVICE_COUNT, 0))
        assert receive(client, 12) == struct.pack("<QI", 4, 1)
    with connect(splitting) as client:
        client.sendall(struct.pack("<BBQ", SPLIT, DEVICE_COUNT, 0))
        assert receive(client, 12) == struct.pack("<QI", 4, 2)


def test_the_offer(splitting, server):
    """A byte of the greeting has it. A server that lends the CPU alone has nothing to split."""
    for each, offer in ((splitting, 0xB1), (server, 0)):
        with socket.create_connection(("127.0.0.1", each.port), timeout=30) as client:
            client.sendall(struct.pack("<BQ24x", HELLO, 24))
            assert receive(client, 36)[8 + 3] == offer


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost(start_server, monkeypatch, blow):
    monkeypatch.setenv(env.RPC_TIMEOUT.name, "1")
    server = start_server("--slots", "10", device="simulated")
    with Engine(config("simulated", draft=False, rpc=server.address, rpc_layers=2)) as engine:
        generation = iter(engine.generate(PROMPT, 200))
        for _ in range(3):
            next(generation)
        server.send(blow)
        with pytest.raises(DeviceError, match=re.escape(f"the RPC server {server.address} ")):
            for _ in generation:
                pass


@pytest.mark.parametrize(
    ("device", "host", "n"),
    [
        (24 * GIB, 60 * GIB, 60),  # host memory limits the layers
        (12 * GIB, 600 * GIB, 96),  # ... or the device, with an eighth of the experts in slots
        (0, 600 * GIB, 0),
        (24 * GIB, GIB // 2, 0),
    ],
)
def test_layers_that_fit(device, host, n):
    assert LayerCost(dense=0, experts=GIB).that_fit(device, host) == n


def test_layers_by_memory(splitting):
    """Without numbers, the server's memory decides: here it is this machine's twice."""
    with Engine(config("cpu", draft=False, rpc=splitting.address)) as engine:
        assert text(engine, 4)
        [(address, n)] = engine.setting(SamplingConfig()).remote_layers.items()
        assert address == splitting.address
        assert 1 <= n < N_LAYER
    assert numbers(splitting)[:2] == (n, 32 * n)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scheduler", "sp-moe"), "scheduler 'sp-moe' needs a draft, and drafts stay with the client"),
        (("--slots", "many"), "must be 'auto', a count (64), or a share of all experts"),
    ],
)
def test_options_that_the_server_refuses(capsys, options, said):
    from spac.rpc_server import main

    with pytest.raises(SystemExit) as left:
        raise SystemExit(main(["--device", "simulated", "--port", "0", *options]))
    assert left.value.code == 2
    assert said in capsys.readouterr().err
