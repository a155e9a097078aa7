"""The routes beside those of llama-cpp-python's server.

They serve OpenAI's completions and chats, chats in other interfaces (`doors`), llama-server's completions,
embeddings, health, metrics, the list of models, and tokens. The last four do not wait for the model, unlike
the routes that they replace.
Streams of that server could have one choice only.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from llama_cpp.server import app as upstream
from llama_cpp.server.types import CreateChatCompletionRequest
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from spac.serve import embeddings, native
from spac.serve.admin import VRAM, change_memory
from spac.serve.chat_run import ChatRun
from spac.serve.checks import REQUESTS, parsed
from spac.serve.choices import timings
from spac.serve.description import detokenized, tokenized
from spac.serve.doors import COMPLETIONS, DOORS, refusal_body
from spac.serve.middleware import read_body
from spac.serve.pieces import Translator, events_of
from spac.serve.refusal import Refusal
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext
from spac.serve.request_queue import Full, full
from spac.serve.slots import SLOTS
from spac.serve.state import ServerState
from spac.serve.stream_thread import StreamThread

OPENAI = ("/v1/completions", "/v1/engines/copilot-codex/completions", "/v1/chat/completions")
NO_ARGUMENTS = {"n", "best_of", "logit_bias_type", "user", "min_tokens"}
"""Fields of a request that the model's methods do not take."""


def add_routes(app: FastAPI, state: ServerState) -> None:
    """Put the routes before the app's own ones, and report all errors in the form of their interface."""
    router = APIRouter()
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "spac", "meta": state.meta}

    def health() -> dict[str, Any]:
        return {"status": "ok", "running": state.queue.n_served, "queue": state.queue.n_waiting}

    def metrics() -> Response:
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in state.models]}

    def model(name: str) -> dict[str, Any]:
        if name not in state.models:
            raise Refusal(404, f"the model '{name}' is not served here", code="model_not_found")
        return entry(name)

    async def tokenize(request: Request) -> dict[str, Any]:
        return tokenized(upstream._llama_proxy(), parsed(await read_body(request.receive)))

    async def detokenize(request: Request) -> dict[str, Any]:
        return detokenized(upstream._llama_proxy(), parsed(await read_body(request.receive)))

    async def vram(request: Request) -> Any:
        asked = parsed(await read_body(request.receive))
        return await run_in_threadpool(change_memory, upstream._llama_proxy(), asked)

    def slots(fail_on_no_slot: bool = False) -> Any:
        listed = state.known_slots.listed()
        if fail_on_no_slot and all(each["is_processing"] for each in listed):
            raise Refusal(503, "no slot is free", retry_after_s=state.queue.retry_after_s())
        return listed

    async def slot(request: Request, number: int, action: str = "") -> Any:
        asked = parsed(await read_body(request.receive) or b"{}")
        try:
            async with state.queue.held():
                return await run_in_threadpool(state.known_slots.act, number, action, asked)
        except Full:
            raise full(state.queue) from None

    router.get("/health")(health)
    router.get(SLOTS)(slots)
    router.post(f"{SLOTS}/{{number}}")(slot)
    router.get("/v1/health")(health)
    router.get("/props")(lambda: state.props)
    router.post("/tokenize")(tokenize)
    router.post("/detokenize")(detokenize)
    router.post(VRAM)(vram)
    router.get("/metrics")(metrics)
    router.get("/v1/models")(models)
    router.get("/v1/models/{name:path}")(model)
    for path in OPENAI:
        router.post(path)(_openai)
    for path in DOORS:
        router.post(path)(_chat)
    for path in embeddings.PATHS:
        router.post(path)(_embeddings)
    router.post(native.PATH)(_native)
    known = list(app.router.routes)
    app.include_router(router)
    added = [route for route in app.router.routes if route not in known]
    app.router.routes[:] = [*added, *known]
    app.add_exception_handler(HTTPException, _refuse)


async def _openai(request: Request) -> Any:
    """Answer a request of OpenAI's completions or chats."""
    asked = REQUESTS[request.url.path].model_validate_json(await request.body())
    llama, arguments = _prepared(asked)
    answer = llama if "prompt" in arguments else llama.create_chat_completion
    if asked.stream:
        return EventSourceResponse(_data(answer(**arguments), REQUEST_CONTEXT.get()), sep="\n")
    return await run_in_threadpool(answer, **arguments)


async def _native(request: Request) -> Any:
    """Answer a request of llama-server's own completions; the context has it as OpenAI's request."""
    context = REQUEST_CONTEXT.get()
    asked = REQUESTS[COMPLETIONS].model_validate_json(await request.body())
    llama, arguments = _prepared(asked)
    parts = native.events(llama(**{**arguments, "stream": True}), context)
    if asked.stream:
        return EventSourceResponse(_data(parts, context, done=False), sep="\n")
    return JSONResponse(await run_in_threadpool(native.whole, parts))


async def _data(
    chunks: Iterable[dict[str, Any]], context: RequestContext, *, done: bool = True
) -> AsyncIterator[bytes]:
    def events() -> Generator[bytes, None, None]:
        for chunk in chunks:
            yield b"data: %b\n\n" % json.dumps(chunk).encode()
        if done:
            yield b"data: [DONE]\n\n"

    async for some in StreamThread(events(), context).items():
        yield b"".join(some)


async def _embeddings() -> JSONResponse:
    """Answer a request of embeddings; the request context has it."""
    proxy, context = upstream._llama_proxy, REQUEST_CONTEXT.get()
    return JSONResponse(await run_in_threadpool(embeddings.embedded, proxy(), proxy.name, context))


async def _chat(request: Request) -> Response:
    """Answer a request of another interface; the request context has its chat request."""
    context, door = REQUEST_CONTEXT.get(), DOORS[request.url.path]
    asked = CreateChatCompletionRequest.model_validate(context.request)
    if door.translator is not None and asked.stream:
        events = _events(asked, context, door.translator(context.original))
        return EventSourceResponse(events, ping_message_factory=lambda: door.ping)
    run = _run(asked)
    made = await run_in_threadpool(run.count if door.counts else run.answer)
    return JSONResponse(door.answer(context.original, {**made, **_figures(context)}))


async def _events(asked: Any, context: RequestContext, translator: Translator) -> AsyncIterator[bytes]:
    events = events_of(translator, _timed(_run(asked).chunks(), context))
    async for some in StreamThread(events, context).items():
        yield b"".join(some)


def _timed(chunks: Iterable[dict[str, Any]], context: RequestContext) -> Iterator[dict[str, Any]]:
    """Yield the chunks, then one with the timings, because a run has its statistics when it is over."""
    yield from chunks
    yield {"choices": [], **_figures(context)}


def _figures(context: RequestContext) -> dict[str, Any]:
    return {"timings": timings(context.runs)} if context.runs else {}


def _run(asked: Any) -> ChatRun:
    return ChatRun(*_prepared(asked))


def _prepared(asked: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model and the arguments that llama-cpp-python's routes would give.

    It does not take those routes' lock: only the task that took the lock may release it, and another task may
    close an abandoned stream. The request queue says how many requests run at a time.
    """
    arguments = asked.model_dump(exclude=NO_ARGUMENTS)
    llama = upstream.prepare_request_resources(asked, upstream._llama_proxy, asked.model, arguments)
    return llama, arguments


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
