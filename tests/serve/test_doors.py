"""Starting and stopping: bad input gives one line and exit code 2, and a stop gives exit code 0."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from spac.serve.app import main
from tests.cli.conftest import environment
from tests.serve.conftest import KEY, Long, Server, in_thread, wait_until


def refused(capfd, *arguments):
    """Return the one line that a refused start writes."""
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = end.code
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_a_port_that_is_taken(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capfd, "--port", str(port))
    assert f"127.0.0.1 port {port}: " in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "no such host"], "--host no such host"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["--port", "65536"], "0 to 65535"),
        (["--port", "http"], "whole number"),
        (["--queue", "-1"], "0 to"),
        (["--target", "no.gguf"], "no.gguf"),
        (["--draft", "no.gguf"], "--target"),
        (["--grammar", "root ::= x"], "--grammar"),  # a grammar is an option of requests
        (["--temp", "hot"], "--temp"),
        (["--pooling", "last"], "give --embeddings too"),
        (["--embeddings"], "names no pooling for embeddings"),
    ],
)
def test_options_that_cannot_be(capfd, arguments, said):
    assert said in refused(capfd, "--port", "0", *arguments)


def test_without_its_packages(capfd, monkeypatch):
    monkeypatch.setattr(
        "spac.doctor.host.missing_modules", lambda extra: ["fastapi"] if extra == "server" else []
    )
    assert "pip install 'spac[server]'" in refused(capfd)


@pytest.mark.parametrize("more", [(), ("--drain-seconds", "0")])
def test_a_stop_while_it_serves(tmp_path, more):
    """The running request and the waiting ones end at once."""
    number = signal.SIGTERM if more else signal.SIGINT
    server = Server(tmp_path, "--alias", "demo", "--ctx", "2048", *more)
    try:
        long = Long(server)
        waiting, results = in_thread(lambda: Long(server))
        wait_until(lambda: server.health()["queue"] == 1)
        assert server.stop(number) == 0
        waiting.join(20)
        assert isinstance(results[0], Exception)
        long.leave()
    finally:
        server.kill()


def test_a_stop_that_lets_the_answer_end(tmp_path):
    """The deadline cuts the running stream. Waiting requests and new ones get 503."""
    server = Server(tmp_path, "--alias", "demo", "--ctx", "2048", "--drain-seconds", "1")
    try:
        long = Long(server)
        waiting, results = in_thread(lambda: Long(server))
        wait_until(lambda: server.health()["queue"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.ask("GET", "/health")[0] == 503)
        assert server.ask("POST", "/v1/completions", {"prompt": "x"})[0] == 503
        *_, last = long.stream
        assert last.choices[0].finish_reason == "length"
        assert last.timings["predicted_n"] < Long.TOKENS
        assert server.process.wait(20) == 0
        waiting.join(20)
        assert results[0].status_code == 503
    finally:
        server.kill()


def test_a_second_signal_does_not_wait(tmp_path):
    server = Server(tmp_path, "--alias", "demo", "--ctx", "2048", "--drain-seconds", "600")
    try:
        long = Long(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.ask("GET", "/health")[0] == 503)
        time.sleep(0.6)  # until then, it counts as the first one
        assert server.stop() == -signal.SIGTERM
        long.leave()
    finally:
        server.kill()


STUCK = """
import ctypes, socket
from types import SimpleNamespace
from spac.serve.server import make_server

async def app(scope, receive, send):
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

bound = socket.create_server(("127.0.0.1", 0))
server = make_server(app, SimpleNamespace(close=lambda: None), verbose=False)
print(bound.getsockname()[1], flush=True)
server.run(sockets=[bound])
"""


def test_a_second_signal_ends_a_server_that_hangs():
    """No Python runs any more in this process, so nobody reads the first signal."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    try:
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline())), 10) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            time.sleep(1)  # until it hangs
            process.send_signal(signal.SIGTERM)
            time.sleep(0.6)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("more", "key", "said"), [(["-q"], KEY, ""), (["-q"], "", ""), ([], "", "set --api-key")]
)
def test_an_open_door_is_spoken_of(tmp_path, more, key, said):
    """A server without a key on an open address warns. With --quiet, it writes only the address."""
    command = [sys.executable, "-m", "spac", "serve", "--port", "0", "--host", "0.0.0.0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(SPAC_API_KEY=key),
    )  # fmt: skip
    address = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert address.startswith("http://0.0.0.0:"), err
    assert (process.returncode, out) == (0, ""), err
    assert said in err
    assert bool(err) == bool(said), err
