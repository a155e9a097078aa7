"""Servers that are lost, slow, of another version, or no servers: one line each, and nothing hangs."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import pytest

from spac import _core, env
from spac.config import EngineConfig
from spac.demo import TARGET
from spac.engine import Engine
from spac.errors import DeviceError, InputError, OutOfMemoryError
from tests.rpc_server.conftest import greeting
from tests.rpc_server.test_layers import PROMPT, config, text


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch):
    monkeypatch.setenv(env.RPC_TIMEOUT.name, "1")


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def of(address: str, device: str = "cpu", **options: object) -> EngineConfig:
    return config(device, draft=False, rpc=address, rpc_layers=2, **options)


def refusal(address: str) -> str:
    with pytest.raises(InputError) as caught:
        Engine(of(address))
    [line] = str(caught.value).splitlines()
    assert address in line
    return line


@pytest.mark.parametrize(
    ("blow", "device", "said"),
    [
        (signal.SIGKILL, "cpu", "closed the connection: it has ended, or its network is down"),
        (signal.SIGKILL, "simulated", "closed the connection: it has ended, or its network is down"),
        (signal.SIGSTOP, "simulated", "did not answer for 1 s: it hangs or cannot be reached any more"),
    ],
)
def test_a_server_that_is_lost(start_server, device, blow, said):
    server = start_server()
    with Engine(of(server.address, device)) as engine:
        generation = iter(engine.generate(PROMPT, 200))
        for _ in range(3):
            next(generation)
        server.send(blow)
        line = f"the RPC server {server.address} {said}"
        with pytest.raises(DeviceError, match=re.escape(line)):
            for _ in generation:
                pass
        with pytest.raises(DeviceError, match=re.escape(line)):  # as long as the model is loaded
            text(engine)
        with pytest.raises(DeviceError, match="close the model that uses it first"):
            Engine(of(server.address, device))
    server.end()
    if blow == signal.SIGKILL:  # and a new one takes its place
        again = start_server(port=server.port)
        with Engine(of(again.address, device)) as engine:
            assert text(engine, 4)


def test_llama_cpps_own_calls_on_a_lost_server(start_server):
    """llama_cpp reads logits and embeddings itself. They are void when the server was lost meanwhile."""
    import spac

    server = start_server()
    options = {"n_ctx": 64, "n_threads": 1, "verbose": False, "embedding": True, "device": "cpu"}
    llm = spac.Llama(str(TARGET), rpc=server.address, rpc_layers=2, **options)
    try:
        llm.eval([1, 2, 3])
        assert llm.embed("a")
        server.end()
        for call in (lambda: llm.eval([4]), lambda: llm.embed("a"), lambda: llm("a", max_tokens=1)):
            with pytest.raises(DeviceError, match=f"{server.address} closed the connection"):
                call()
    finally:
        llm.close()


def test_a_server_without_memory(start_server, monkeypatch):
    monkeypatch.setenv(env.SIMULATED_DEVICE.name, "memory_mb=1")
    server = start_server(device="simulated")
    with pytest.raises(InputError, match=r"no server has memory for a layer of .*: 1\.0 MiB on .* are free"):
        Engine(config("cpu", draft=False, rpc=server.address))
    said = rf"a server has no memory for its layers \(5 on {server.address}\): give fewer with --rpc-layers"
    with pytest.raises(OutOfMemoryError, match=said):
        Engine(config("cpu", draft=False, rpc=server.address, rpc_layers=5))


def test_an_engine_beside_a_lost_one(start_server):
    server = start_server()
    with Engine(of(server.address)) as lost, Engine(config("cpu", draft=False)) as other:
        server.end()
        with pytest.raises(DeviceError, match="closed the connection"):
            text(lost)
        assert text(other, 4)


def test_addresses_without_a_server_of_this_version(false_server):
    ours = _core.rpc_version()
    major, minor, patch = map(int, ours.split("."))
    assert "Connection refused: start it there with `spac rpc-server`" in refusal(closed_port())
    assert "check the host's name" in refusal("no-such-host.invalid:50052")
    for answer, said in (
        (None, "did not answer for 1 s"),
        (b"", "closed the connection at once: it serves another client, has another version, or is no RPC"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "sent an answer of"),
        (greeting(major, minor, patch), "closed the connection: it has ended"),
    ):
        assert said in refusal(false_server(answer))
    for theirs in ((major - 1, 0, 2), (major + 1, 0, 0), (major, minor + 1, 0)):
        line = refusal(false_server(greeting(*theirs)))
        assert f"speaks version {'.'.join(map(str, theirs))} of the protocol" in line
        assert f"this spac speaks {ours}: run the same version" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"rpc": rpc}, f"rpc: {rpc!r} is not HOST:PORT") for rpc in ("nonsense", "host:0", "[::1]:5", 1)),
        ({"rpc": "a:1,,b:2"}, "rpc: '' is not HOST:PORT"),
        ({"rpc": "a:1,a:01"}, "a server stands twice in a:1, a:1"),
        ({"rpc_layers": 2}, "rpc_layers needs RPC servers: add --rpc HOST:PORT"),
        ({"rpc": "a:1", "rpc_layers": "2,3"}, "rpc_layers has 2 numbers for 1 servers"),
        ({"rpc": "a:1", "rpc_layers": "many"}, "rpc_layers: 'many' is not a number of layers"),
        ({"rpc": "a:1", "rpc_layers": True}, "rpc_layers: True is not a number of layers"),
    ],
)
def test_bad_addresses_and_numbers_of_layers(options, said):
    with pytest.raises(InputError, match=re.escape(said)):
        EngineConfig("model.gguf", **options)


def test_the_program_says_one_line():
    command = [sys.executable, "-m", "spac.run", "--device", "cpu", "-p", "a", "-n", "1", "--rpc"]
    done = subprocess.run([*command, closed_port()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert not done.stdout
    [line] = done.stderr.splitlines()
    assert re.match(
        r"spac run: error: the RPC server 127\.0\.0\.1:\d+ cannot be reached: Connection refused", line
    )
