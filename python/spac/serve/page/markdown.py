"""Markdown as HTML that is safe to show: no raw HTML, no images, links to http and https only."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LONGEST_CODE = 100_000
"""The most characters of a code block that are highlighted. Highlighting keeps other threads waiting."""
SCROLLS = 'tabindex="0" role="region"'
FORMATTER = HtmlFormatter(nowrap=True)


def html_of(text: str) -> str:
    """Return the HTML of a text in Markdown."""
    return str(RENDERER.render(text))


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
        return f'<div class="code" {SCROLLS} aria-label="Code">{made}</div>\n'

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
    return markdown


RENDERER = _made()
