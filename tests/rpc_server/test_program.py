"""The program `spac rpc-server`: its lines, one client at a time, its end, and messages of no use."""

from __future__ import annotations

import re
import select
import signal
import socket
import struct
from contextlib import suppress

import pytest

from spac.engine import Engine
from spac.errors import InputError
from spac.rpc_server import DANGER, main
from tests.rpc_server.conftest import receive
from tests.rpc_server.test_faults import of
from tests.rpc_server.test_layers import text

HELLO, DEVICE_COUNT, GET_TENSOR, SET_TENSOR = 14, 15, 8, 6


def connect(server) -> socket.socket:
    """Return a connection to a server that has exchanged greetings."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(struct.pack("<BQ24x", HELLO, 24))
    assert receive(client, 8 + 28)
    return client


def test_what_it_says(server):
    assert any(DANGER in line and "only this machine reaches it" in line for line in server.lines)
    assert any(line.startswith("spac: lends CPU (") for line in server.lines)


def test_a_client_too_many(start_server):
    server = start_server()
    with connect(server):
        with pytest.raises(InputError, match="it serves another client"):
            Engine(of(server.address))
        server.wait_for("was refused: .* is served, and there is one client at a time")
    with Engine(of(server.address)) as engine:
        assert text(engine, 2)


def test_a_client_that_does_not_greet_makes_room(start_server, monkeypatch):
    monkeypatch.setenv("SPAC_RPC_TIMEOUT", "0.4")
    server = start_server()
    for begun in (b"", struct.pack("<BQ", HELLO, 24)):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
            silent.sendall(begun)
            with suppress(ConnectionResetError):  # what it has sent is not read
                assert silent.recv(1) == b""
    with connect(server) as client:
        assert not select.select([client], [], [], 0.8)[0]  # after its greeting, a client may take its time


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_ends_while_a_client_is_there(start_server, number, code):
    server = start_server()
    with connect(server) as client:
        server.send(number)
        assert server.process.wait(60) == code
        assert client.recv(1) == b""


def test_messages_that_are_no_messages(start_server):
    """Each client is sent away, and the next one is served."""
    server = start_server()
    for message in (
        b"GET / HTTP/1.1\r\n\r\n" + bytes(40),
        struct.pack("<BQ", HELLO, 3) + b"abc",
        struct.pack("<BQ24xB", HELLO, 24, 250),
        struct.pack("<BQ24xBQ", HELLO, 24, SET_TENSOR, 2**63),
        struct.pack("<BQ24xBQ", HELLO, 24, GET_TENSOR, 5) + b"12345",
        struct.pack("<BQ24xBQ", HELLO, 24, SET_TENSOR, 400) + bytes(400),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(message)
            with suppress(ConnectionResetError):  # the server left without reading everything
                while client.recv(4096):
                    pass
    with connect(server) as client:
        client.sendall(struct.pack("<BQ", DEVICE_COUNT, 0))
        assert receive(client, 12) == struct.pack("<QI", 4, 1)
    assert server.process.poll() is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device", "nothing"), "unknown device 'nothing'"),
        (("--device", "cpu,CPU"), "a device stands twice"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--port", "70000"), "--port"),
    ],
)
def test_bad_options(options, said, capsys):
    try:
        code = main(["--port", "0", *options])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_warning_beyond_the_loopback(start_server):
    answer = re.compile(r"serves RPC [\d.]+ on (0\.0\.0\.0:\d+)$")
    server = start_server("--host", "0.0.0.0", "--quiet", answer=answer)
    assert any(line.startswith(f"spac: warning: {DANGER}: whoever reaches") for line in server.lines)
