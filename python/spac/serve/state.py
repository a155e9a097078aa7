"""The state of the server's front, and who is admitted."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable, Collection, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spac.serve.admin import ADMIN, check_peer
from spac.serve.metrics import Metrics
from spac.serve.refusal import Refusal
from spac.serve.request_queue import RequestQueue

if TYPE_CHECKING:
    from spac.serve.front import LoopRequest

Scope = MutableMapping[str, Any]

SLOTS = "/slots"
"""The path of llama-server's slots, which can be saved, restored and erased."""
OPEN_TO_ALL = {"/health", "/v1/health"}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str) -> bool:
    """Return True for this server's own page at an IP address; others can let a name lead to this address."""
    return _is_address(_host_of(origin) or "") and origin == f"http://{host}"


class ServerState:
    """The state of the front: queue, metrics, model names, key, running requests."""

    def __init__(
        self,
        queue: RequestQueue,
        metrics: Metrics,
        models: tuple[str, ...],
        api_key: str,
        page: Collection[str] = (),
    ) -> None:
        """Create the state; `page` has the paths of the page's files."""
        self.queue, self.metrics, self.models = queue, metrics, models
        self.requests: set[LoopRequest] = set()
        self._open = {*OPEN_TO_ALL, *page}
        self.strict_model = False
        """True to refuse requests that name another model."""
        self.log: Callable[[str], None] = lambda _line: None
        """The function that writes a line of the request log."""
        self.names: Collection[str] = ()
        """The names under which clients reach a server that listens on this machine alone; none for any name.

        A web page can let its own name lead to this machine, and then read what a server without a key says.
        """
        self._key = api_key.encode()
        self._closing = False

    def admit(self, path: str, scope: Scope) -> None:
        """Raise Refusal if the key is wrong or the server is about to stop.

        Without a key, pages of other machines are refused, because browsers let any page send requests here.
        Requests that change the engine are then refused from other machines.
        """
        self.check_open()
        headers = dict(scope["headers"])
        if not self._key and path not in OPEN_TO_ALL:
            self._check_name(headers.get(b"host", b"").decode("latin-1"))
        if path in self._open:
            return
        if not self._key:
            if path.startswith((ADMIN, f"{SLOTS}/")):
                check_peer(scope.get("client"))
            origin = headers.get(b"origin", b"").decode("latin-1")
            own = _is_own(origin, headers.get(b"host", b"").decode("latin-1"))
            if origin and not own and _host_of(origin) not in LOOPBACK:
                raise Refusal(403, f"a page of {origin} needs an API key: start the server with --api-key")
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        keys = [key.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")]
        if not any(hmac.compare_digest(each, self._key) for each in keys):
            raise Refusal(401, "the API key is missing or wrong")

    def _check_name(self, host: str) -> None:
        """Raise Refusal if a client has found this machine under a name that is not its own."""
        name = _host_of(f"//{host}")
        if not self.names or not host or name in self.names or _is_address(name or ""):
            return
        raise Refusal(
            403, f"{host} is no name of this machine: use 127.0.0.1, or start the server with --api-key"
        )

    @property
    def has_key(self) -> bool:
        """True if clients have to send a key."""
        return bool(self._key)

    def check_open(self) -> None:
        """Raise Refusal if the server is about to stop."""
        if self._closing:
            raise Refusal(503, "the server is stopping")

    @property
    def draining(self) -> bool:
        """True once no more requests are admitted."""
        return self._closing

    def drain(self) -> None:
        """Admit no more requests, and refuse those that wait; call this in the event loop's thread."""
        self._closing = True
        for request in list(self.requests):
            if request.waits:
                request.cancel()

    async def drained(self, seconds: float) -> None:
        """Wait until no request runs, or until so many seconds have passed."""
        end = time.monotonic() + seconds
        while self.requests and time.monotonic() < end:
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Cancel all requests that run or wait, and admit no more; call this in the event loop's thread."""
        self._closing = True
        for request in list(self.requests):
            request.cancel()
