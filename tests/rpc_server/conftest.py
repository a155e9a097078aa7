"""Servers for the tests: real ones in processes of their own, and false ones on sockets."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Programs

ANSWER = re.compile(r"serves RPC [\d.]+ on (127\.0\.0\.1:\d+)$")


class Server:
    """A real server on the loopback, which computes on the CPU."""

    def __init__(
        self,
        programs: Programs,
        *options: str,
        port: int = 0,
        device: str = "cpu",
        answer: re.Pattern[str] = ANSWER,
    ) -> None:
        words = ["rpc-server", "--port", str(port), "--device", device, "--threads", "1", *options]
        reader, writer = os.pipe()
        with open(writer, "wb") as err:
            self.process = programs.start("spac", words, Path.cwd(), os.environ, err)
        self.process.stdout.close()
        self._stderr = os.fdopen(reader)
        self.lines: list[str] = []
        self._known = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.wait_for(answer)[1]

    def _read(self) -> None:
        for line in self._stderr:
            with self._known:
                self.lines.append(line.rstrip("\n"))
                self._known.notify_all()
        with self._known:
            self.lines.append("")
            self._known.notify_all()

    def wait_for(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Return the match of the first line that has the pattern, once the server has written it."""
        with self._known:
            while not (found := [match for line in self.lines if (match := re.search(pattern, line))]):
                assert self.lines[-1:] != [""], f"the server ended: {self.lines}"
                assert self._known.wait(60), self.lines
            return found[0]

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        self._stderr.close()


@pytest.fixture(scope="session")
def server(programs: Programs) -> Iterator[Server]:
    server = Server(programs)
    yield server
    server.end()


@pytest.fixture
def start_server(programs: Programs) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*options: str, **details: Any) -> Server:
        started.append(Server(programs, *options, **details))
        return started[-1]

    yield start
    for each in started:
        each.end()


def receive(client: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n and (more := client.recv(n - len(data))):
        data += more
    return data


@pytest.fixture
def false_server() -> Iterator[Callable[[bytes | None], str]]:
    """Return a function that makes a server with this answer to a greeting, and returns its address.

    It closes the connection after the answer. Without one, it never answers.
    """
    listening: list[socket.socket] = []
    clients: list[socket.socket] = []

    def make(answer: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    clients.append(client)
                    if answer is not None:
                        receive(client, 1 + 8 + 24)  # the greeting
                        client.sendall(answer)
                        client.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield make
    for each in (*listening, *clients):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def greeting(major: int, minor: int, patch: int) -> bytes:
    return struct.pack("<QBBBB24x", 28, major, minor, patch, 0)
