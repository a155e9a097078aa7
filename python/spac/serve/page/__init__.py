"""The server's page: a chat, and beside it what the engine does now.

The routes serve the page's files, turn Markdown into HTML, and stream the live feed. The page asks for
answers by the server's own OpenAI interface.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool

from spac.report.page import colours
from spac.serve.page.live import LiveFeed
from spac.serve.page.markdown import html_of
from spac.serve.refusal import Refusal

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {"/": "index.html"} | {
    f"/page/{name}": name for name in ("page.css", "page.js", "elements.js", "images.js")
}
"""The page's files by path. They hold no secret, so they need no key."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
MOST_TEXT = 1 << 20
"""The most bytes of Markdown in a request."""


def page_routes(feed: LiveFeed) -> APIRouter:
    """Return the routes of the page; `feed` is what it shows beside the chat."""
    router = APIRouter()
    for path, name in FILES.items():
        router.add_api_route(path, _file_route(name), include_in_schema=False)

    async def events() -> Response:
        return EventSourceResponse(feed.watch())

    router.get("/page/events")(events)
    router.post("/page/markdown")(_markdown)
    return router


def _file_route(name: str) -> Callable[[], Response]:
    text = (Path(__file__).parent / name).read_text("utf-8")
    if name.endswith(".css"):
        text = colours() + text
    kind = KINDS[Path(name).suffix]
    return lambda: Response(text, media_type=kind, headers=HEADERS)


async def _markdown(request: Request) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_TEXT:
            raise Refusal(413, f"the text has more than {MOST_TEXT >> 20} MB")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: {error}") from None
    return JSONResponse({"html": await run_in_threadpool(html_of, text)})
