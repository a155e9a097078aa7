"""The errors that clients receive when a request cannot be served."""

from __future__ import annotations

import json
import logging
from typing import Any

from spac.errors import Cancelled, one_line

GONE = 499
"""The status that logs and metrics count for a client that left; it is never sent."""
KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
    501: "not_supported_error", 503: "unavailable_error",
}  # fmt: skip
"""The types of llama-server's errors by status, beside those of faults of the request or the server."""
ANTHROPICS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
"""The types of errors in Anthropic's interface, by status."""

log = logging.getLogger("spac.serve")


class Refusal(Exception):  # noqa: N818  (an answer, not a fault)
    """An error with an HTTP status and a message of one line."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, one_line(message), retry_after_s

    def body(self, path: str) -> dict[str, Any]:
        """Return the JSON object that a client of this path gets: in Anthropic's form, or llama-server's."""
        is_ours = self.status >= 500
        if path == "/v1/messages" or path.startswith("/v1/messages/"):
            kind = ANTHROPICS.get(self.status, "api_error" if is_ours else "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = KINDS.get(self.status, "server_error" if is_ours else "invalid_request_error")
        return {"error": {"code": self.status, "message": self.message, "type": kind}}

    def fields(self) -> list[tuple[bytes, bytes]]:
        """Return the header fields of the response."""
        fields = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            fields.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        return fields


class MessageErrors:
    """Puts the errors of llama.cpp's handlers into the form of Anthropic's Messages."""

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer, or of an error."""
        told = json.loads(body)
        return body if "error" not in told else self._error(told["error"])

    def part(self, events: bytes) -> bytes:
        """Return some whole events of a stream."""
        before, mark, error = events.partition(b"event: error\ndata: ")
        return before + mark + self._error(json.loads(error)) + b"\n\n" if mark else events

    def _error(self, error: dict[str, Any]) -> bytes:
        return json.dumps(Refusal(error["code"], error["message"]).body("/v1/messages")).encode()


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that reports an error to a client.

    A ValueError is a fault of the request. Other unknown errors are faults of the server, status 500.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Cancelled):
        return Refusal(GONE, "cancelled")
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, ValueError):
        return Refusal(400, text)
    log.error("spac: a request failed: %s: %s", type(error).__name__, text)
    log.debug("the cause:", exc_info=error)
    return Refusal(500, f"{type(error).__name__}: {text}")
