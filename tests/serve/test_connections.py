"""Connections and bodies that take too long, too much, or are too many end, and others are answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from spac.serve import connections
from spac.serve.connections import Bodies, guarded
from spac.serve.refusal import Refusal

N = 4


async def app(_scope: Any, receive: Any, send: Any) -> None:
    """Answer when the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def served(work: Any) -> None:
    """Run `work(open, is_closed)` beside a server that has the guard."""
    import uvicorn

    config = uvicorn.Config(
        app, port=0, http=guarded(N), log_level="error", lifespan="off", timeout_keep_alive=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        await work(lambda: asyncio.open_connection("127.0.0.1", port))
    finally:
        server.should_exit = True
        await task


HALF, WHOLE = b"GET / HTTP/1.1\r\nhost: x\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def talk(opened: Any, *parts: bytes, pause_s: float = 0.2) -> bytes:
    """Send parts on a new connection, with pauses, and return all of the answer."""
    reader, writer = await opened()
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause_s if part is not parts[-1] else 0)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("begin", [b"", HALF, WHOLE + HALF, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-"])
def test_a_head_that_does_not_come_closes_its_connection(begin, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)

    async def work(opened: Any) -> None:
        assert (await talk(opened, begin)).endswith(b"ok") == begin.startswith(WHOLE)

    asyncio.run(served(work))


def test_a_request_whose_body_is_slow_is_not_a_late_head(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 6\r\n\r\n"

    async def work(opened: Any) -> None:
        assert (await talk(opened, head, b"a", b"bc", b"def")).endswith(b"ok")

    asyncio.run(served(work))


def test_there_are_so_many_connections_and_no_more():
    async def work(opened: Any) -> None:
        held = [await opened() for _ in range(N)]
        assert await talk(opened, b"") == b""
        held[0][1].write(WHOLE)
        assert b"200" in await asyncio.wait_for(held[0][0].readline(), 10)
        for _, each in held:
            each.close()

    asyncio.run(served(work))


def message(n: int, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * n, "more_body": more}


def test_all_bodies_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(connections, "MAX_BODIES", 100)

    async def work() -> None:
        bodies, parts = Bodies(), [message(30, True), message(30)]
        first = bodies.one()
        data = await first.read(lambda: asyncio.sleep(0, parts.pop(0)))
        assert len(data) == bodies.n_bytes == 60
        with first, pytest.raises(Refusal) as refused, bodies.one() as second:
            await second.read(lambda: asyncio.sleep(0, message(30, True)))
        assert refused.value.status == 503
        assert refused.value.retry_after_s
        assert bodies.n_bytes == 0

    asyncio.run(work())


def test_a_body_that_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(connections, "BODY_S", 0.05)

    async def work() -> None:
        with Bodies().one() as body, pytest.raises(Refusal, match="took more than") as refused:
            await body.read(lambda: asyncio.sleep(10, message(1)))
        assert refused.value.status == 408

    asyncio.run(work())


LONG = "word " * 400_000  # 2 MB
CHATS, USER = "/v1/chat/completions", {"role": "user", "content": "a"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": LONG}), ("/completion", {"prompt": LONG}),
    (CHATS, {"messages": [{"role": "user", "content": LONG}]}),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
    ("/v1/messages", {"system": LONG, "max_tokens": 1, "messages": [USER]}),
    ("/v1/responses", {"instructions": LONG, "input": "a"}), ("/v1/responses", {"input": LONG}),
    (CHATS, {"messages": [USER] * 20_000}), ("/v1/completions", {"prompt": ["a"] * 20_000}),
    ("/v1/embeddings", {"input": ["a"] * 20_000}),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CASES)))
def test_what_cannot_fit_is_refused_before_it_is_read(server, index):
    message = server.refusal(*CASES[index])
    assert "maximum context length is 2048 tokens" in message or "2048 are the most" in message


def test_large_questions_do_not_keep_others_waiting(server):
    """Four texts of 1 MB are tokenized, one at a time. Meanwhile, others are answered."""
    data = json.dumps({"content": LONG[: 1 << 20]}).encode()
    sockets = [server.connection() for _ in range(4)]
    for each in sockets:
        each.request("POST", "/tokenize", data, {"authorization": "Bearer a key"})
    for _ in range(5):
        server.get("/v1/models")
    # This one is answered in its turn; nobody reads the other answers yet.
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "grammar": 'root ::= "a"'})
    for each in sockets:
        with each.getresponse() as response:
            assert response.status == 200
            response.read()
        each.close()
