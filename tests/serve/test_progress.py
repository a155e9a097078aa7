"""A client of a stream is told how far its prompt is. The metrics tell it too."""

from __future__ import annotations

import asyncio
import json

import pytest

from spac.engine.prompt_progress import Reading
from spac.serve import middleware
from spac.serve.metrics import Metrics
from spac.serve.middleware import RequestMiddleware
from spac.serve.refusal import Refusal
from spac.serve.request_queue import RequestQueue
from spac.serve.state import ServerState

LONG = Reading(1024, 4096, 1.5, 3.4)
COMMENT = b": prompt 1024/4096 tokens, about 3 s left\n\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(middleware, "TELL_S", 0.01)


def body(data, more):
    return {"type": "http.response.body", "body": data, "more_body": more}


def answer(app, reading, *, stream, path="/v1/chat/completions"):
    """Return the messages that a client gets from `app`, which reads a prompt for some time."""
    sent, queue = [], RequestQueue(4)
    state = ServerState(queue, Metrics(queue), ("m",), "")
    state.metrics.reading = lambda: reading
    request = json.dumps({**REQUEST, "stream": stream}).encode()

    async def run():
        requests = [{"type": "http.request", "body": request, "more_body": False}]

        async def receive():
            if requests:
                return requests.pop()
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        async def read_first(scope, receive, send):
            await asyncio.sleep(0 if app is begins else 0.1)
            await app(scope, receive, send)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await RequestMiddleware(read_first, state=state)(scope, receive, send)

    asyncio.run(run())
    return sent


async def begins(_scope, _receive, send):
    """Send the status before the prompt is read, as llama-cpp-python's app does."""
    await send(START)
    await asyncio.sleep(0.1)
    await streams(None, None, lambda message: send(message) if message is not START else asyncio.sleep(0))


async def streams(_scope, _receive, send):
    await send(START)
    await send(body(b"data: one\n\n", True))
    await asyncio.sleep(0.05)
    await send(body(b"data: two\n\n", True))
    await send(body(b"", False))


async def refuses(_scope, _receive, send):
    refusal = Refusal(400, "the prompt is too long")
    await send({"type": "http.response.start", "status": 400, "headers": refusal.fields()})
    await send(body(json.dumps(refusal.body()).encode(), False))


async def raises(_scope, _receive, _send):
    raise Refusal(503, "the server is stopping")


@pytest.mark.parametrize("app", [streams, begins])
def test_comments_come_before_the_first_event(app):
    start, *rest = answer(app, LONG, stream=True)
    assert start["status"] == 200
    assert dict(start["headers"])[b"content-type"].startswith(b"text/event-stream")
    bodies = [message["body"] for message in rest]
    n = bodies.count(COMMENT)
    assert n > 1
    assert bodies == [COMMENT] * n + [b"data: one\n\n", b"data: two\n\n", b""]
    assert [message["more_body"] for message in rest] == [True] * (n + 2) + [False]


@pytest.mark.parametrize(
    ("reading", "stream"), [(None, True), (Reading(10, 40, 0.1, 0.5), True), (LONG, False)]
)
def test_short_prompts_and_whole_answers_have_no_comments(reading, stream):
    assert answer(streams, reading, stream=stream) == [
        START, body(b"data: one\n\n", True), body(b"data: two\n\n", True), body(b"", False)
    ]  # fmt: skip


@pytest.mark.parametrize("app", [refuses, raises])
def test_a_refusal_after_a_comment_is_an_event(app):
    start, *rest = answer(app, LONG, stream=True)
    assert start["status"] == 200
    assert rest[-1] == body(b"", False)
    event = rest[-2]["body"]
    assert event.startswith(b"data: ")
    said = json.loads(event.removeprefix(b"data: "))["error"]["message"]
    assert said in ("the prompt is too long", "the server is stopping")
    assert {message["body"] for message in rest[:-2]} == {COMMENT}


def test_a_refusal_before_is_a_status():
    sent = answer(refuses, None, stream=True)
    assert [message.get("status") for message in sent] == [400, None]


def test_metrics():
    metrics, readings = Metrics(RequestQueue(4)), [LONG, None]
    metrics.reading = lambda: readings[0]
    text = metrics.text().decode()
    for line in ("length_tokens 4096.0", "done_tokens 1024.0", "left_seconds 3.4"):
        assert f"spac_prompt_{line}\n" in text
    readings.pop(0)
    assert "spac_prompt_length_tokens 0.0\n" in metrics.text().decode()
