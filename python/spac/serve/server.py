"""uvicorn's server around the app, what signals do to it, and the address at which it listens."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Any

from spac.cli import interrupt
from spac.errors import InputError
from spac.serve.connections import guarded, most_connections

if TYPE_CHECKING:
    from spac.serve.state import ServerState

BACKLOG = 2048
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5  # seconds in which responses can end after a stop; generations end at once


def make_server(app: Any, state: ServerState, *, verbose: bool, drain_s: int = 0) -> Any:
    """Return uvicorn's server around the app.

    From now on, Ctrl-C stops it, and cancels the requests that it serves. SIGTERM lets those that run end
    within `drain_s` seconds. A second signal ends the process, whatever it does.
    """
    import uvicorn

    level = "info" if verbose else "error"
    server = uvicorn.Server(uvicorn.Config(
        app, http=guarded(most_connections()), backlog=BACKLOG, log_level=level, access_log=False,
        timeout_graceful_shutdown=GRACE_S, lifespan="off",
    ))  # fmt: skip
    leave = server.handle_exit

    def stop(number: int, frame: Any) -> None:
        state.close()
        leave(number, frame)

    async def drain(number: int) -> None:
        await state.drained(drain_s)
        stop(number, None)

    def handle_exit(number: int, frame: Any) -> None:
        if number == signal.SIGTERM and drain_s and not state.draining:
            state.drain()
            tasks.append(asyncio.get_running_loop().create_task(drain(number)))
        else:
            stop(number, frame)

    async def startup(sockets: Any = None) -> None:
        interrupt.end_at_second_signal(*SIGNALS)  # behind uvicorn's handlers, which are set by now
        await begin(sockets)

    begin, server.startup = server.startup, startup
    tasks: list[asyncio.Task[None]] = []  # the loop itself keeps no task alive
    server.handle_exit = handle_exit

    def end(*_: Any) -> None:
        server.should_exit = True
        interrupt.end_at_second_signal(*SIGNALS, has_come=True)  # a thread may keep the process from ending

    # uvicorn replaces these handlers when it starts, and raises the signals again when it ends. A stop is a
    # server's normal end, so these handlers raise nothing.
    for each in SIGNALS:
        signal.signal(each, end)
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; raise InputError if the address does not exist or is taken.

    The socket is bound before the model is loaded, so that a taken port is reported at once.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host {host}: {reason}") from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host and --port"
        ) from None
    return bound


def address(bound: socket.socket) -> str:
    """Return the address and the port, as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Return True if only this machine can reach the address."""
    host = str(bound.getsockname()[0])
    return host.startswith("127.") or host == "::1"
