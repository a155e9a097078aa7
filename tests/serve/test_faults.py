"""Faults of the model and of the network, with a model that fails on purpose."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time

import pytest
from starlette.testclient import TestClient

from spac.errors import Cancelled
from spac.serve import middleware
from spac.serve.app import make_app
from spac.serve.metrics import Metrics
from spac.serve.refusal import GONE, Refusal
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext
from spac.serve.request_queue import RequestQueue
from spac.serve.served_model import ServedModel

pytestmark = [  # sse-starlette leaves the channel of a stream open if the stream ends early
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collect():
    """Collect those channels here, where an open one is no error."""
    yield
    gc.collect()


REQUEST = {"prompt": "x", "stream": True}


class Failing:
    """A model that yields some chunks, then raises."""

    stats = engine = None
    chat_handler = None

    def __init__(self, n_chunks: int, error: Exception | None) -> None:
        self._n_chunks, self._error = n_chunks, error
        self.closed = 0

    def create_completion(self, *, stream=False, **keywords):
        assert not keywords["stopping_criteria"]([], [])  # the client is there
        if not stream:
            raise self._error
        return self._chunks()

    def _chunks(self):
        try:
            for at in range(self._n_chunks):
                yield {"choices": [{"text": str(at)}]}
            if self._error is not None:
                raise self._error
        finally:
            self.closed += 1


class Chatting(Failing):
    """The same model in chats."""

    def __init__(self, n_chunks: int, error: Exception | None, wait_s: float = 0) -> None:
        super().__init__(n_chunks, error)
        self.chat_handler = self._chat
        self._wait_s = wait_s

    def _chunks(self):
        time.sleep(self._wait_s)
        return super()._chunks()

    @staticmethod
    def _chat(*, llama, stream, **_arguments):
        parts = llama.create_completion(prompt=[1], stop=[], stream=stream)
        head = {"id": "chatcmpl-0", "created": 0, "model": "failing"}

        def chunks():
            for part in parts:
                delta = {"content": part["choices"][0]["text"]}
                yield {**head, "choices": [{"delta": delta, "finish_reason": None}]}
            yield {**head, "choices": [{"delta": {}, "finish_reason": "stop"}]}

        return chunks()


CHATS = {
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    "/v1/responses": {"input": "x"},
}
"""Requests in other interfaces."""


def events_of(response):
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def served(llama):
    app, state = make_app(llama, "failing", "", 2)
    return TestClient(app), state


def test_a_fault_is_reported_and_the_next_request_served(caplog):
    client, state = served(Failing(0, RuntimeError("the device is gone")))
    for stream in (False, True):
        with caplog.at_level(logging.ERROR, "spac.serve"):
            response = client.post("/v1/completions", json={**REQUEST, "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "RuntimeError: the device is gone"
        assert response.json()["error"]["type"] == "server_error"
        assert "the device is gone" in caplog.text
    assert not state.queue.n_served


def test_a_fault_after_the_beginning_is_an_event():
    client, _ = served(Failing(50, RuntimeError("the device is gone")))
    response = client.post("/v1/completions", json=REQUEST)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert response.status_code == 200
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert texts  # chunks on their way inside the app may be missing
    assert texts == [str(at) for at in range(len(texts))]
    assert events[-1]["error"]["message"] == "RuntimeError: the device is gone"
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("path", CHATS)
def test_a_fault_in_other_interfaces(path):
    client, state = served(Chatting(0, RuntimeError("the device is gone")))
    for stream in (False, True):
        response = client.post(path, json={**CHATS[path], "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "RuntimeError: the device is gone"
        assert response.json()["error"]["type"] == {"/v1/messages": "api_error"}.get(path, "server_error")
    assert not state.queue.n_served


@pytest.mark.parametrize("path", CHATS)
def test_a_fault_after_the_beginning_in_other_interfaces(path):
    llama = Chatting(3, RuntimeError("the device is gone"))
    client, _ = served(llama)
    response = client.post(path, json={**CHATS[path], "stream": True})
    assert response.status_code == 200
    last = events_of(response)[-1]
    assert last["type"] in ("error", "response.failed")
    assert last.get("response", last)["error"]["message"] == "RuntimeError: the device is gone"
    sent = [event["delta"] for event in events_of(response) if event["type"].endswith("delta")]
    assert [delta if isinstance(delta, str) else delta["text"] for delta in sent] == ["0", "1", "2"]
    assert llama.closed == 1


@pytest.mark.parametrize("path", CHATS)
def test_a_stream_is_kept_alive_while_nothing_is_sent(path, monkeypatch):
    monkeypatch.setattr("sse_starlette.EventSourceResponse.DEFAULT_PING_INTERVAL", 0.02)
    client, _ = served(Chatting(1, None, wait_s=0.3))
    response = client.post(path, json={**CHATS[path], "stream": True})
    ping = {"/v1/messages": 'event: ping\ndata: {"type": "ping"}\n\n'}.get(path, ": ping\n\n")
    assert response.text.startswith(ping)
    others = [event["type"] for event in events_of(response) if event["type"] != "ping"]  # one may be late
    assert others[-1] in ("message_stop", "response.completed")


def test_what_fails_after_a_ping_is_an_event_too(monkeypatch):
    monkeypatch.setattr("sse_starlette.EventSourceResponse.DEFAULT_PING_INTERVAL", 0.02)
    client, _ = served(Chatting(0, RuntimeError("the device is gone"), wait_s=0.3))
    response = client.post("/v1/messages", json={**CHATS["/v1/messages"], "stream": True})
    error = {"type": "api_error", "message": "RuntimeError: the device is gone"}
    assert events_of(response)[-1] == {"type": "error", "error": error}
    assert "event: error\n" in response.text


def test_a_stream_is_closed_before_the_next_request():
    llama = Failing(3, None)
    client, _ = served(llama)
    assert client.post("/v1/completions", json=REQUEST).text.count("data: {") == 3
    assert llama.closed == 1


def test_settings_of_the_environment_change_nothing(monkeypatch):
    """llama-cpp-python's server would take its key and its models from there."""
    monkeypatch.setenv("CONFIG_FILE", "no.json")
    monkeypatch.setenv("API_KEY", "another")
    client, _ = served(Failing(1, None))
    assert client.post("/v1/completions", json=REQUEST).status_code == 200


def test_other_models_are_refused_if_names_are_strict():
    client, state = served(Chatting(1, None))
    state.strict_model = True
    asked = {"/v1/completions": REQUEST, **CHATS}
    for path, request in asked.items():
        response = client.post(path, json={**request, "model": "gpt-4"})
        assert response.status_code == 404
        assert response.json()["error"]["message"] == "the model 'gpt-4' is not served here: failing is"
        assert client.post(path, json={**request, "model": "failing", "stream": True}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:3000", 200), ("http://127.0.0.1", 200), (None, 200), ("https://example.com", 403),
     ("null", 403), ("http://[", 403)],
)  # fmt: skip
def test_pages_of_others_are_refused_without_a_key(origin, status):
    client, _ = served(Failing(1, None))
    headers = {} if origin is None else {"origin": origin}
    assert client.post("/v1/completions", json=REQUEST, headers=headers).status_code == status
    assert client.get("/v1/models", headers=headers).status_code == status
    assert client.get("/health", headers=headers).status_code == 200


def test_a_client_that_leaves_stops_what_the_library_does():
    """The prompt's evaluation stops too. During it, no stopping criterion is asked."""
    context = RequestContext({})

    class Session:
        cancelled = False

        def cancel(self):
            self.cancelled = True

    class Evaluating:
        stats = None

        class engine:  # noqa: N801
            session, batch = Session(), None

        def create_completion(self, **_keywords):
            context.cancel()
            assert self.engine.session.cancelled
            raise Cancelled("cancelled")

    token = REQUEST_CONTEXT.set(context)
    try:
        model = ServedModel(Evaluating(), "name", Metrics(RequestQueue(1)))
        for _ in range(2):  # the second call ends before it begins
            with pytest.raises(Refusal) as refusal:
                model.create_completion()
            assert refusal.value.status == GONE
    finally:
        REQUEST_CONTEXT.reset(token)


def test_while_it_stops_nobody_is_admitted():
    client, state = served(Failing(1, None))
    state.close()
    response = client.post("/v1/completions", json=REQUEST)
    assert response.status_code == 503


def test_a_client_that_takes_nothing_is_gone(monkeypatch):
    monkeypatch.setattr(middleware, "STALL_S", 0.01)

    async def never(_message):
        await asyncio.Event().wait()

    async def main():
        answer = middleware.Answer(never, "/")
        await answer.send({"type": "http.response.start", "status": 200, "headers": []})
        await answer.send({"type": "http.response.body", "body": b"data", "more_body": True})

    with pytest.raises(Refusal) as refusal:
        asyncio.run(main())
    assert refusal.value.status == GONE
