"""Connections and bodies that take too long, too much, or are too many end, and others are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from spac.serve import connections
from spac.serve.connections import Bodies, guarded
from spac.serve.refusal import Refusal
from tests.serve.conftest import Server

N = 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("small"), "--ctx", "512")
    yield server
    assert server.stop() == 0


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


@pytest.mark.parametrize("begin", [b"", HALF, WHOLE + HALF, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-"])
def test_a_head_that_does_not_come_closes_its_connection(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)

    async def work(opened: Any) -> None:
        reader, writer = await opened()
        writer.write(begin)
        answer = await asyncio.wait_for(reader.read(), 10)  # to its end
        assert answer.endswith(b"ok") == begin.startswith(WHOLE)
        writer.close()

    asyncio.run(served(work))


def test_a_request_whose_body_is_slow_is_not_a_late_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)

    async def work(opened: Any) -> None:
        reader, writer = await opened()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 6\r\n\r\n")
        for _ in range(3):
            await asyncio.sleep(0.2)
            writer.write(b"ab")
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"ok")
        writer.close()

    asyncio.run(served(work))


def test_there_are_so_many_connections_and_no_more() -> None:
    async def work(opened: Any) -> None:
        held = [await opened() for _ in range(N)]
        reader, writer = await opened()
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            answer = b""
        assert answer == b""
        writer.close()
        held[0][1].write(WHOLE)
        assert b"200" in await asyncio.wait_for(held[0][0].readline(), 10)
        for _, each in held:
            each.close()

    asyncio.run(served(work))


def message(n: int, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * n, "more_body": more}


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_BODIES", 100)
    bodies = Bodies()

    async def read(*parts: dict[str, Any]) -> tuple[Any, bytes]:
        left = list(parts)

        async def receive() -> dict[str, Any]:
            return left.pop(0)

        body = bodies.one()
        return body, await body.read(receive)

    async def work() -> None:
        first, data = await read(message(30, True), message(30))
        assert len(data) == bodies.n_bytes == 60
        with first, pytest.raises(Refusal) as refused, bodies.one() as second:
            await second.read(lambda: asyncio.sleep(0, message(30, True)))
        assert refused.value.status == 503
        assert refused.value.retry_after_s
        assert bodies.n_bytes == 0

    asyncio.run(work())


def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_S", 0.05)

    async def work() -> None:
        with Bodies().one() as body, pytest.raises(Refusal, match="took more than") as refused:
            await body.read(lambda: asyncio.sleep(10, message(1)))
        assert refused.value.status == 408

    asyncio.run(work())


LONG = "word " * 1_600_000  # 8 MB
CHATS, USER = "/v1/chat/completions", {"role": "user", "content": "a"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a prompt of 8 MB": ("/v1/completions", {"prompt": LONG}),
    "a prompt of 8 MB, llama-server's form": ("/completion", {"prompt": LONG}),
    "a message of 8 MB": (CHATS, {"messages": [{"role": "user", "content": LONG}]}),
    "its parts": (CHATS, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
    "a system prompt of 8 MB": ("/v1/messages", {"system": LONG, "max_tokens": 1, "messages": [USER]}),
    "instructions of 8 MB": ("/v1/responses", {"instructions": LONG, "input": "a"}),
    "an input of 8 MB": ("/v1/responses", {"input": LONG}),
    "100,000 messages": (CHATS, {"messages": [USER] * 100_000}),
    "100,000 prompts": ("/v1/completions", {"prompt": ["a"] * 100_000}),
    "100,000 texts": ("/v1/embeddings", {"input": ["a"] * 100_000}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_fit_is_refused_before_it_is_read(server: Server, name: str) -> None:
    path, body = CASES[name]
    status, answer = server.ask("POST", path, body)
    assert status == 400, answer
    assert b"maximum context length is 2048 tokens" in answer or b"2048 are the most" in answer


def test_large_questions_do_not_keep_others_waiting(server: Server) -> None:
    """Eight texts of 4 MB are tokenized, one at a time. Meanwhile, others are answered."""
    data = json.dumps({"content": LONG[: 4 << 20]}).encode()
    sockets = []
    for _ in range(8):
        connection = server.connection()
        connection.request("POST", "/tokenize", data, {"authorization": "Bearer a key"})
        sockets.append(connection)
    for _ in range(5):
        assert server.ask("GET", "/v1/models")[0] == 200
    asked = {"prompt": "x", "max_tokens": 2, "grammar": 'root ::= "a"'}
    assert server.ask("POST", "/v1/completions", asked)[0] == 200  # in its turn; nobody reads the answers yet
    for each in sockets:
        with each.getresponse() as response:
            assert response.status == 200
            response.read()
        each.close()
