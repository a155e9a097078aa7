"""A server of ggml's RPC protocol: it lends this machine's devices to spac on another machine.

Exit codes: 0 stopped by SIGTERM, 2 bad input, 130 interrupted, 1 a fault of spac or of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from spac import env
from spac.cli import interrupt
from spac.cli.options import Parser, number
from spac.cli.program import INTERRUPTED, add_talk, guarded, say
from spac.config import Range
from spac.errors import InputError, SpacError, one_line
from spac.machine.cpu import default_threads, physical_cores
from spac.machine.device_memory import size
from spac.serve.server import address, is_loopback, listen

if TYPE_CHECKING:
    from spac import _core

GREETING = 24
"""The bytes of a greeting behind its length."""
GREETING_S = 10.0
"""Seconds that a new client has for its greeting; fewer if SPAC_RPC_TIMEOUT is."""
PATIENCE_S = 1.0
"""Seconds for which a new client waits for the one before to leave."""
DANGER = "RPC is neither encrypted nor authenticated, and a client can read and crash this process"


def make_parser() -> Parser:
    """Return the parser with the options of `spac rpc-server`."""
    parser = Parser(
        prog="spac rpc-server",
        description="Lend this machine's devices to spac on another machine (--rpc HOST:PORT there), by "
        f"ggml's RPC protocol. {DANGER}: let trusted machines alone reach it.",
    )
    server = parser.add_argument_group("server")
    server.add_argument(
        "--host", "-H", metavar="ADDRESS", default="127.0.0.1",
        help="listen on this address (default: %(default)s, which other machines cannot reach)",
    )  # fmt: skip
    server.add_argument(
        "--port", "-p", metavar="N", type=number(int, Range(0, 65535)), default=50052,
        help="listen on this port; 0: one that is free (default: %(default)s)",
    )  # fmt: skip
    server.add_argument(
        "--device", "-d", metavar="NAME[,…]",
        help="devices to lend, such as CUDA0,cpu (default: all GPUs, or else the CPU)",
    )  # fmt: skip
    server.add_argument(
        "--threads", "-t", metavar="N", type=number(int, Range(0, 512)), default=0,
        help="CPU threads; 0: one per physical core, fewer beside a GPU (default: %(default)s)",
    )  # fmt: skip
    server.add_argument(
        "--cache", "-c", action="store_true",
        help="keep large weights in the cache folder, so that a client sends them once",
    )  # fmt: skip
    add_talk(parser.add_argument_group("output"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: Program(options).run())


class _Lines(logging.Formatter):
    """Messages of the library, of which spac's own have their beginning already."""

    def format(self, record: logging.LogRecord) -> str:
        return "spac: " + super().format(record).removeprefix("spac: ")


class Program:
    """One run of the server. It serves one client at a time, as ggml's protocol has it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._idle = threading.Event()
        self._idle.set()
        self._client: socket.socket | None = None
        self._peer = ""
        self._fault: SpacError | None = None
        self._code: int | None = None
        """The exit code of the signal that stopped the program; None while it runs."""

    def run(self) -> int:
        """Listen and serve until a signal comes, and return the exit code."""
        with self._errors_shown():
            return self._wait_for_clients()

    def _wait_for_clients(self) -> int:
        bound = listen(self._options.host, self._options.port)
        self._wake, woken = socket.socketpair()
        with bound, self._wake, woken:
            server = self._server()
            bound.listen()
            self._say_hello(server, bound)
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, self._on_signal)
            while self._code is None and self._fault is None:
                ready, _, _ = select.select([bound, woken], [], [])
                if bound in ready and self._code is None:
                    self._accept(server, bound)
            self._idle.wait()
        if self._fault is not None:
            raise self._fault
        return self._code or 0

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Show what ggml says of messages that it cannot use, unless all of its log is shown."""
        from spac.model import c_api

        c_api.listen()
        if self._options.verbose:
            yield
            return
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines())
        handler.setLevel(logging.ERROR)
        before, c_api.log.propagate = c_api.log.propagate, False
        c_api.log.addHandler(handler)
        try:
            yield
        finally:
            c_api.log.removeHandler(handler)
            c_api.log.propagate = before

    def _server(self) -> _core.RpcServer:
        from spac import _core
        from spac.model.devices import kernels_on, set_switches, set_up_simulated, without_kernels
        from spac.model.pinning import set_pinning

        set_up_simulated()
        set_pinning()
        names = [name.strip() for name in (self._options.device or "").split(",") if name.strip()]
        if not names:
            gpus = [each.name for each in _core.devices() if not each.shares_host_cores]
            names = [name for name in gpus if kernels_on(name) != "none"] or ["cpu"]
        wanted = {name.lower() for name in names}
        if len(wanted) < len(names):
            raise InputError(f"--device {self._options.device}: a device stands twice: name each once")
        served = [each for each in _core.devices() if each.name.lower() in wanted]
        if without := without_kernels(served):
            raise InputError(without[0])
        set_switches(served)
        threads = self._options.threads or default_threads(
            physical_cores(),
            gpu=any(not each.shares_host_cores for each in served),
            shares_cores=any(each.shares_host_cores for each in served),
        )
        return _core.RpcServer(names, threads, self._cache())

    def _cache(self) -> str:
        """Return the folder for weights, which exists then; "" without one."""
        if not self._options.cache:
            return ""
        folder = env.cache_folder() / "rpc"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--cache: {folder}: {error.strerror}") from None
        return str(folder)

    def _say_hello(self, server: _core.RpcServer, bound: socket.socket) -> None:
        from spac import _core

        for each in server.devices:
            free = f"{size(each.memory_free)} of {size(each.memory_total)} free"
            self._note(f"lends {each.name} ({each.description}), {free}")
        if is_loopback(bound):
            self._note(f"{DANGER}: only this machine reaches it")
        else:
            say(f"spac: warning: {DANGER}: whoever reaches {address(bound)} can do so; use a trusted network")
        say(f"spac: serves RPC {_core.rpc_version()} on {address(bound)}")

    def _note(self, line: str) -> None:
        if not self._options.quiet:
            say(f"spac: {line}")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._code is not None:
            interrupt.leave()  # the second signal, while a graph is computed
        self._code = INTERRUPTED if number == signal.SIGINT else 0
        client = self._client
        if client is not None:
            _shut(client)
        self._wake.send(b"s")

    def _accept(self, server: _core.RpcServer, bound: socket.socket) -> None:
        """Serve a new client on a thread, or refuse it while another one is served."""
        try:
            client, where = bound.accept()
        except OSError:  # it has left already
            return
        peer = f"{where[0]}:{where[1]}"
        if not self._idle.wait(PATIENCE_S):
            self._note(f"{peer} was refused: {self._peer} is served, and there is one client at a time")
            client.close()
            return
        if self._code is not None or self._fault is not None:
            client.close()
            return
        self._idle.clear()
        self._peer, self._client = peer, client.dup()
        self._note(f"{peer} is served")
        threading.Thread(target=self._serve, args=(server, client.detach()), name="rpc", daemon=True).start()

    def _serve(self, server: _core.RpcServer, fd: int) -> None:
        try:
            if self._client is not None and not _greets(self._client):
                os.close(fd)
                raise InputError("its greeting did not come")
            server.serve(fd)
            self._note(f"{self._peer} left")
        except InputError as error:
            self._note(f"{self._peer} was sent away: {one_line(str(error))}")
        except SpacError as error:
            self._fault = type(error)(f"{self._peer} asked for what ends the server: {error}")
        finally:
            client, self._client = self._client, None
            if client is not None:
                client.close()
            self._idle.set()
            if self._fault is not None:
                self._wake.send(b"f")


def _greets(client: socket.socket) -> bool:
    """Return True once a client's greeting has come, or anything else of its length; False if it is late.

    ggml's server waits for it without end, and serves nobody else.
    """
    given = env.RPC_TIMEOUT.get()
    until, head = time.monotonic() + min(given or GREETING_S, GREETING_S), struct.calcsize("<BQ")
    wanted = head
    while (left := until - time.monotonic()) > 0:
        if not select.select([client], [], [], left)[0]:
            return False
        try:
            came = client.recv(wanted, socket.MSG_PEEK)
        except OSError:  # it has left
            return True
        if len(came) >= head:
            wanted = head + min(struct.unpack_from("<Q", came, 1)[0], GREETING)
        if not came or len(came) >= wanted:
            return True
        time.sleep(0.02)
    return False


def _shut(client: socket.socket) -> None:
    """End a connection, so that the thread that serves it returns."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
