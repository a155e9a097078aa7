"""The errors that clients receive when a request cannot be served, in OpenAI's form."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from fastapi import HTTPException

from spac.errors import Cancelled, one_line

GONE = 499
"""The status that logs and metrics count for a client that left; it is never sent."""

TOO_LONG = re.compile(r"Requested tokens \((\d+)\) exceed context window of (\d+)")
UNABLE = re.compile(r"must be created with logits_all=True|logits_all=False")


log = logging.getLogger("spac.serve")


class Refusal(HTTPException):  # type: ignore[misc]
    """An error with an HTTP status and a message of one line.

    llama-cpp-python's routes let exceptions of its base class through.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(status, one_line(message))
        self.status, self.message, self.code, self.param = status, one_line(message), code, param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """Return the JSON object that is sent."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def fields(self) -> list[tuple[bytes, bytes]]:
        """Return the header fields of the response."""
        fields = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            fields.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        return fields

    def event(self) -> bytes:
        """Return the event for a stream that has begun; OpenAI's clients raise an error for it."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that reports an error to a client.

    A ValueError is a fault of the request. Other unknown errors are faults of the server, status 500.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error.__cause__, Refusal):  # the framework wraps it: "the response has already started"
        error = error.__cause__
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Cancelled):
        return Refusal(GONE, "cancelled")
    text = one_line(str(error)) or type(error).__name__
    if match := TOO_LONG.search(text):
        return Refusal(
            400,
            f"the prompt and the answer need {match[1]} tokens, and the context holds {match[2]}",
            code="context_length_exceeded",
        )
    if UNABLE.search(text):
        return Refusal(400, f"this server's model does not do that: {text}")
    if isinstance(error, ValueError):
        return Refusal(400, text)
    log.error("spac: a request failed: %s: %s", type(error).__name__, text)
    log.debug("the cause:", exc_info=error)
    return Refusal(500, f"{type(error).__name__}: {text}")
