"""The server's page: a chat, and beside it what the engine does now.

The routes serve the page's files, let Markdown be turned into HTML, and stream the live feed. The page asks
for answers by the server's own OpenAI interface.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from spac.report.page import colours
from spac.serve.page.live import LiveFeed
from spac.serve.page.renderer import Renderer, plain_html_of
from spac.serve.refusal import Refusal

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {"/": "index.html"} | {
    f"/page/{path.name}": path.name
    for path in sorted(Path(__file__).parent.iterdir())
    if path.suffix in (".css", ".js")
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
MOST_TEXT, MOST_PDF = 1 << 20, 20 << 20
"""The most bytes of Markdown and of a PDF file in a request."""


def page_routes(feed: LiveFeed, is_markdown: bool) -> list[Route]:
    """Return the routes of the page, which shows `feed` beside a chat of Markdown or of plain text."""
    renderer, reader = Renderer(), Renderer()  # a PDF file keeps no text waiting

    async def events(_request: Request) -> Response:
        return EventSourceResponse(feed.watch())

    async def rendered(request: Request) -> Response:
        text = await _text_of(request)
        return JSONResponse({"html": await renderer.html_of(text) if is_markdown else plain_html_of(text)})

    async def read(request: Request) -> Response:
        text = await reader.pdf_text(await _body_of(request, MOST_PDF))
        if not text:
            raise Refusal(400, "this PDF file has no text that can be read")
        return JSONResponse({"text": text})

    return [
        *(Route(path, _file_route(name)) for path, name in FILES.items()),
        Route("/page/events", events),
        Route("/page/markdown", rendered, methods=["POST"]),
        Route("/page/pdf", read, methods=["POST"]),
    ]


def _file_route(name: str) -> Callable[[Request], Response]:
    text = (Path(__file__).parent / name).read_text("utf-8")
    if name.endswith(".css"):
        text = colours() + text
    kind = KINDS[Path(name).suffix]
    return lambda _request: Response(text, media_type=kind, headers=HEADERS)


async def _body_of(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Refusal(413, f"the text or file has more than {most >> 20} MB")
    return bytes(body)


async def _text_of(request: Request) -> str:
    try:
        return (await _body_of(request, MOST_TEXT)).decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: {error}") from None
