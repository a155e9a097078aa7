"""The server's page: a chat, and beside it what the engine does now.

The routes serve the page's files, turn Markdown into HTML, and stream the live feed. The page asks for
answers by the server's own OpenAI interface.
"""

from __future__ import annotations

import html
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from spac.report.page import colours
from spac.serve.page.live import LiveFeed
from spac.serve.refusal import Refusal

LONGEST_CODE = 100_000
"""The most characters of a code block that are highlighted. Highlighting keeps other threads waiting."""
SCROLLS = 'tabindex="0" role="region"'
FORMATTER = HtmlFormatter(nowrap=True)


def html_of(text: str) -> str:
    """Return the HTML of a text in Markdown."""
    return str(RENDERER.render(text))


def plain_html_of(text: str) -> str:
    """Return the HTML that shows a text as it is."""
    return f'<div class="code" {SCROLLS} aria-label="Text"><pre>{html.escape(text)}</pre></div>'


def _highlighted(code: str, language: str, _attributes: str) -> str:
    """Return highlighted code as HTML; "" if the language is unknown, which makes it plain."""
    if not language or len(code) > LONGEST_CODE:
        return ""
    try:
        return str(highlight(code, get_lexer_by_name(language, stripnl=False), FORMATTER))
    except ClassNotFound:
        return ""


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


class _Rules:
    """The rendering rules that differ from markdown-it's."""

    def __init__(self, markdown: MarkdownIt) -> None:
        self._renderer: Any = markdown.renderer

    def code(self, tokens: Sequence[Any], i: int, options: Any, _env: MutableMapping[str, Any]) -> str:
        """Return a block of code that scrolls, also by keyboard."""
        made = self._renderer.fence(tokens, i, options, _env)
        copy = '<button type="button" class="copy" aria-label="Copy code" title="Copy code">Copy</button>'
        return f'<div class="block">{copy}<div class="code" {SCROLLS} aria-label="Code">{made}</div></div>\n'

    def link(self, tokens: Sequence[Any], i: int, options: Any, env: MutableMapping[str, Any]) -> str:
        """Return the beginning of a link, which opens in a page that knows nothing of this one."""
        tokens[i].attrSet("rel", "noopener noreferrer")
        tokens[i].attrSet("target", "_blank")
        return str(self._renderer.renderToken(tokens, i, options, env))

    def cell(self, tokens: Sequence[Any], i: int, options: Any, env: MutableMapping[str, Any]) -> str:
        """Return the beginning of a table's cell; its alignment is a class, for styles are not allowed."""
        if style := tokens[i].attrs.pop("style", None):
            tokens[i].attrSet("class", str(style).rpartition(":")[2])
        return str(self._renderer.renderToken(tokens, i, options, env))


def _keep_formulas(state: Any) -> None:
    """Keep the backslashes of LaTeX's brackets, which Markdown takes for escapes."""
    for block in state.tokens:
        for token in block.children or ():
            if token.type == "text_special" and token.markup in {r"\(", r"\)", r"\[", r"\]"}:
                token.content = token.markup


def _made() -> MarkdownIt:
    options = {"html": False, "highlight": _highlighted}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("image")
    markdown.validateLink = _is_web
    rules = _Rules(markdown)
    opened = f'<div class="table" {SCROLLS} aria-label="Table"><table>\n'
    given = {
        "fence": rules.code, "code_block": rules.code, "link_open": rules.link, "th_open": rules.cell,
        "td_open": rules.cell, "table_open": lambda *_: opened, "table_close": lambda *_: "</table></div>\n",
    }  # fmt: skip
    markdown.renderer.rules.update(given)
    markdown.core.ruler.before("text_join", "formulas", _keep_formulas)
    return markdown


RENDERER = _made()


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
MOST_TEXT = 1 << 20
"""The most bytes of Markdown in a request."""


def page_routes(feed: LiveFeed, is_markdown: bool) -> list[Route]:
    """Return the routes of the page, which shows `feed` beside a chat of Markdown or of plain text."""
    render = html_of if is_markdown else plain_html_of

    async def events(_request: Request) -> Response:
        return EventSourceResponse(feed.watch())

    async def rendered(request: Request) -> Response:
        return JSONResponse({"html": await run_in_threadpool(render, await _text_of(request))})

    return [
        *(Route(path, _file_route(name)) for path, name in FILES.items()),
        Route("/page/events", events),
        Route("/page/markdown", rendered, methods=["POST"]),
    ]


def _file_route(name: str) -> Callable[[Request], Response]:
    text = (Path(__file__).parent / name).read_text("utf-8")
    if name.endswith(".css"):
        text = colours() + text
    kind = KINDS[Path(name).suffix]
    return lambda _request: Response(text, media_type=kind, headers=HEADERS)


async def _text_of(request: Request) -> str:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_TEXT:
            raise Refusal(413, f"the text has more than {MOST_TEXT >> 20} MB")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8: {error}") from None
