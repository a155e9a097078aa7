"""The entrance of the deployment: it reads a request and passes it to the engine that knows its prompt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError

from spac.serve.connections import Bodies, Message
from spac.serve.front import ANSWERS, SHORT, Answer
from spac.serve.ray.prefixes import prompt_text
from spac.serve.ray.replica import Ask
from spac.serve.refusal import Refusal, refusal_of

PASSED = {
    *ANSWERS, "/health", "/v1/health", "/v1/models", "/tokenize", "/detokenize", "/props", "/apply-template",
    "/v1/messages/count_tokens",
}  # fmt: skip
"""The paths that any engine can answer. Others are about one engine: its slots, memory and metrics."""
FIELDS = ("type", "method", "path", "raw_path", "query_string", "headers", "client", "server", "scheme")
"""The fields of the ASGI scope that go to the engine. Others cannot be sent to another process."""
LOST = "the engine of this request has ended: send the request again, and another one answers"


@serve.deployment
@serve.ingress()
class Door:
    """Serves HTTP: its engines are the replicas of another deployment."""

    def __init__(self, engines: Any) -> None:
        """Create the entrance to the deployment of `Replica`."""
        self._engines = engines.options(stream=True)
        self._bodies = Bodies()

    def __serve_build_asgi_app__(self) -> Callable[..., Awaitable[None]]:
        """Return the ASGI application, as Ray Serve asks for it."""

        async def app(scope: Message, receive: Any, send: Any) -> None:  # uvicorn takes no bound method
            await self._serve(scope, receive, send)

        return app

    async def _serve(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        path = SHORT.get(scope["path"], str(scope["path"]))
        answer = Answer(send, path)
        try:
            if path not in PASSED and not path.startswith("/v1/models/"):
                raise Refusal(404, f"{path} is not served here, because it is about one of several engines")
            with self._bodies.one() as sent:
                body = await sent.read(receive)
                text = prompt_text(body) if path in ANSWERS else ""
                ask = Ask({name: scope[name] for name in FIELDS if name in scope}, body, text)
                await self._pass(ask, receive, answer)
        except RayError:
            await answer.refuse(Refusal(503, LOST, retry_after_s=1))
        except BackPressureError:
            await answer.refuse(Refusal(429, "too many requests are waiting: try again later"))
        except Exception as error:
            await answer.refuse(refusal_of(error))

    async def _pass(self, ask: Ask, receive: Any, answer: Answer) -> None:
        """Send the engine's answer to the client; cancel it when the client leaves."""
        parts = self._engines.answer.remote(ask)

        async def copy() -> None:
            async for messages in parts:
                for message in messages:
                    await answer.send(message)

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.create_task(copy()), asyncio.create_task(watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            if not (tasks[0].done() and answer.complete):
                parts.cancel()
            for task in tasks:
                task.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.gather(*tasks)
