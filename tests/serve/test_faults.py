"""Faults of the model and of the network: the front in front of a loop that fails on purpose."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from spac.serve import answer, front
from spac.serve.answer import Answer
from spac.serve.front import Front
from spac.serve.refusal import GONE, Refusal
from spac.serve.request_queue import RequestQueue
from spac.serve.state import ServerState

REQUEST = {"prompt": "x"}
PATHS = ("/v1/completions", "/v1/messages", "/v1/responses")


class Failing:
    """A loop whose answers have some parts, and then an error."""

    def __init__(self, n_parts: int, error: Exception | None) -> None:
        self._n_parts, self._error, self.n_closed = n_parts, error, 0
        self.status, self.content_type, self.headers, self.is_stream = 200, "text/event-stream", {}, True

    def begin(self, _route: str, _body: bytes, _params: dict[str, str]) -> Failing:
        self._left = self._n_parts
        return self

    def run(self) -> None:
        if not self._n_parts and self._error is not None:
            raise self._error

    def next(self) -> bytes | None:
        self._left -= 1
        if self._left >= 0:
            return f"data: {self._left}\n\n".encode()
        if self._error is not None:
            raise self._error
        return None

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.n_closed += 1


class Counts:
    """Metrics that nobody reads."""

    def __init__(self) -> None:
        self.seconds = self.queued = self.requests = self
        self.labels = lambda *_: self
        self.inc = self.observe = lambda *_: None


def served(loop: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[TestClient, ServerState]:
    monkeypatch.setattr(front, "checked", lambda _path, body, *_: body)
    state = ServerState(RequestQueue(2), Counts(), ("failing",), "")
    model = SimpleNamespace(pointer=0)
    engine = SimpleNamespace(loop=loop, target=model, events=None, n_sequences=1, context=2048)
    return TestClient(Front(engine, state), raise_server_exceptions=False), state


@pytest.mark.parametrize("path", PATHS)
def test_a_fault_is_reported_and_the_next_request_served(path, caplog, monkeypatch):
    loop = Failing(0, RuntimeError("the device is gone"))
    client, state = served(loop, monkeypatch)
    for n in (1, 2):
        with caplog.at_level(logging.ERROR, "spac.serve"):
            response = client.post(path, json=REQUEST)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "RuntimeError: the device is gone"
        assert response.json()["error"]["type"] == {"/v1/messages": "api_error"}.get(path, "server_error")
        assert "the device is gone" in caplog.text
        assert loop.n_closed == n
    assert not state.queue.n_served


def test_a_fault_after_the_beginning_is_an_event(monkeypatch):
    loop = Failing(5, RuntimeError("the device is gone"))
    client, state = served(loop, monkeypatch)
    response = client.post("/v1/completions", json=REQUEST)
    assert response.status_code == 200
    *parts, last = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    assert parts == [4, 3, 2, 1, 0]
    assert last["error"]["message"] == "RuntimeError: the device is gone"
    assert (loop.n_closed, state.queue.n_served) == (1, 0)


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1", "https://example.com",
                                    "null", "http://["])  # fmt: skip
def test_pages_of_others_are_refused_without_a_key(origin, monkeypatch):
    client, _ = served(Failing(1, None), monkeypatch)
    headers = {} if origin is None else {"origin": origin}
    status = 200 if origin is None or "//localhost" in origin or "//127" in origin else 403
    assert client.post("/v1/completions", json=REQUEST, headers=headers).status_code == status
    assert client.get("/v1/models", headers=headers).status_code == status
    assert client.get("/health", headers=headers).status_code == 200


def test_while_it_stops_nobody_is_admitted(monkeypatch):
    client, state = served(Failing(1, None), monkeypatch)
    state.close()
    assert client.post("/v1/completions", json=REQUEST).status_code == 503


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 0.1), (0.05, 0.5), (5.0, 2.0)])
def test_a_refusal_pauses_by_the_work_that_it_took(took_s, pause_s):
    """A client that asks again at once has a tenth of a core at most. Plain requests do not pause."""
    assert front.pause_s(b'{"grammar": "root ::= x"}', took_s) == pytest.approx(pause_s)
    assert front.pause_s(b'{"prompt": "x"}', took_s) == 0


def test_a_client_that_takes_nothing_is_gone(monkeypatch):
    monkeypatch.setattr(answer, "STALL_S", 0.01)

    async def never(_message):
        await asyncio.Event().wait()

    with pytest.raises(Refusal) as refusal:
        asyncio.run(Answer(never, "/").whole(200, {}))
    assert refusal.value.status == GONE
