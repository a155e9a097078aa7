"""Ask a server for OpenAI's completions, as a stream, and note when each piece comes."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bench.processes import TOOK_TOO_LONG, PeerError, Server

RETRY_S = 0.1
REFUSED = (400, 422, 500)  # statuses of servers that do not know a field or a form of the prompt


class RefusedError(PeerError):
    """A refusal after which another form of the request may succeed."""


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer, and the time.perf_counter() of its arrival."""

    time: float
    text: str
    usage: dict[str, Any]
    timings: dict[str, Any]  # llama.cpp's
    reason: str | None


class Client:
    """A client of a server that has been started. All methods raise PeerError, with one line."""

    def __init__(self, server: Server, port: int, deadline: float) -> None:
        """Give up at the time.monotonic() of `deadline`."""
        self._server, self._port, self._deadline = server, port, deadline
        self._begun = time.monotonic()
        self.model = ""

    def wait(self) -> None:
        """Wait until the server answers, at /health or, where it has no such page, at /v1/models."""
        while True:
            self._server.check()
            try:
                status, _ = self._get("/health")
                if status == 404:
                    status, _ = self._get("/v1/models")
                if status == 200:
                    break
                said = f"status {status} at /health"
            except (OSError, http.client.HTTPException):
                said = f"no answer at port {self._port}"
            if time.monotonic() + RETRY_S > self._deadline:
                raise self._too_late(said)
            time.sleep(RETRY_S)
        with self.explained():
            status, data = self._get("/v1/models")
        try:  # some servers refuse other names than their model's
            self.model = str(json.loads(data)["data"][0]["id"]) if status == 200 else "model"
        except (ValueError, LookupError, TypeError):
            self.model = "model"

    def stream(self, body: dict[str, Any]) -> Iterator[Chunk]:
        """Yield the pieces of a completion. Raise RefusedError for a status of `REFUSED`."""
        connection = self._connection()
        try:
            connection.connect()
            wire = connection.sock
            words = json.dumps({"model": self.model, "stream": True, **body})
            connection.request("POST", "/v1/completions", words, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                said = f"it answered with status {answer.status}: {_message(answer.read())}"
                raise (RefusedError if answer.status in REFUSED else PeerError)(said)
            reason = None
            while line := answer.readline():
                with suppress(OSError):  # otherwise a server that collects small packets waits for this side
                    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                if time.monotonic() > self._deadline:
                    raise self._too_late("it is still answering")
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise PeerError(f"it answered with an error: {_message(data)}")
                choice = (event.get("choices") or [{}])[0]
                reason = choice.get("finish_reason") or reason
                usage, timings = event.get("usage") or {}, event.get("timings") or {}
                yield Chunk(time.perf_counter(), choice.get("text") or "", usage, timings, reason)
            if reason is None:
                raise ConnectionResetError
        finally:
            connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors on the way into PeerError."""
        try:
            yield
        except TimeoutError:
            raise self._too_late("it does not answer") from None
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"the connection broke: {type(error).__name__}") from None
        except (ValueError, AttributeError, TypeError):
            raise PeerError("its answer is no stream of completions") from None

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        left = max(RETRY_S, self._deadline - time.monotonic())
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=left)

    def _too_late(self, said: str) -> PeerError:
        allowed = self._deadline - self._begun
        return PeerError(
            f"{TOOK_TOO_LONG} {allowed:.0f} s: {said}; its last lines: {self._server.last_lines}"
        )


def _message(data: bytes) -> str:
    """Return an error's message in one line."""
    text = data.decode(errors="replace")
    with suppress(ValueError, LookupError, TypeError):
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    return " ".join(text.split())[:200]
