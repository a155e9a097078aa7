"""The address at which the server listens."""

from __future__ import annotations

import socket

from spac.errors import InputError


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
