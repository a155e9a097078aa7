"""The routes beside those of llama-cpp-python's server.

They serve chats in other interfaces (`doors`), health, metrics and the list of models. The last three do not
wait for the model, unlike the routes that they replace.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from llama_cpp.server import app as upstream
from llama_cpp.server.types import CreateChatCompletionRequest
from sse_starlette import EventSourceResponse
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.exceptions import HTTPException

from spac.serve.chat_run import ChatRun
from spac.serve.doors import DOORS, refusal_body
from spac.serve.middleware import ServerState
from spac.serve.pieces import Translator, events_of
from spac.serve.refusal import Refusal
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext

NO_ARGUMENTS = {"n", "logit_bias_type", "user", "min_tokens"}
"""Fields of a chat request that `create_chat_completion` does not take."""


def add_routes(app: FastAPI, state: ServerState) -> None:
    """Put the routes before the app's own ones, and report all errors in the form of their interface."""
    router = APIRouter()
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "spac"}

    def health() -> dict[str, Any]:
        return {"status": "ok", "running": int(state.queue.busy), "queue": state.queue.n_waiting}

    def metrics() -> Response:
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in state.models]}

    def model(name: str) -> dict[str, Any]:
        if name not in state.models:
            raise Refusal(404, f"the model '{name}' is not served here", code="model_not_found")
        return entry(name)

    router.get("/health")(health)
    router.get("/metrics")(metrics)
    router.get("/v1/models")(models)
    router.get("/v1/models/{name:path}")(model)
    for path in DOORS:
        router.post(path)(_chat)
    known = list(app.router.routes)
    app.include_router(router)
    added = [route for route in app.router.routes if route not in known]
    app.router.routes[:] = [*added, *known]
    app.add_exception_handler(HTTPException, _refuse)


async def _chat(request: Request) -> Response:
    """Answer a request of another interface; the request context has its chat request."""
    context, door = REQUEST_CONTEXT.get(), DOORS[request.url.path]
    asked = CreateChatCompletionRequest.model_validate(context.request)
    if door.translator is not None and asked.stream:
        events = _events(asked, context, door.translator(context.original))
        return EventSourceResponse(events, ping_message_factory=lambda: door.ping)
    run = _run(asked)
    made = await run_in_threadpool(run.count if door.counts else run.answer)
    return JSONResponse(door.answer(context.original, made))


async def _events(asked: Any, context: RequestContext, translator: Translator) -> AsyncIterator[bytes]:
    events = events_of(translator, _run(asked).chunks())
    context.at_end(events.close)  # a client that left would keep them until they are collected
    async for event in iterate_in_threadpool(events):
        yield event


def _run(asked: Any) -> ChatRun:
    """Return the run of a chat, with the arguments that llama-cpp-python's chat route would give.

    It does not take that route's lock: only the task that took the lock may release it, and another task may
    close an abandoned stream. The request queue admits one request at a time.
    """
    arguments = asked.model_dump(exclude=NO_ARGUMENTS)
    llama = upstream.prepare_request_resources(asked, upstream._llama_proxy, asked.model, arguments)
    return ChatRun(llama, arguments)


async def _refuse(request: Request, error: HTTPException) -> JSONResponse:
    detail = str(error.detail)
    if error.status_code == 404:
        detail += f": nothing is served at {request.url.path}; chats are at /v1/chat/completions"
    refusal = error if isinstance(error, Refusal) else Refusal(error.status_code, detail)
    return JSONResponse(
        refusal_body(request.url.path, refusal),
        refusal.status,
        headers={name.decode(): value.decode() for name, value in refusal.fields()},
    )
