"""The rules that turn Markdown into safe HTML, and the program that `Renderer` runs.

The program reads a job and its data in JSON from each line, and writes the result in JSON. It starts without
the rest of spac. A hostile text can keep it busy or end it, and harms nothing else.
"""

from __future__ import annotations

import base64
import bisect
import io
import json
import resource
import sys
import zlib
from collections.abc import MutableMapping, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from math_core import LatexError, LatexToMathML
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.tasklists import tasklists_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LONGEST_CODE = 100_000
"""The most characters of a code block that are highlighted."""
LONGEST_FORMULA = 2_000
"""The most characters of a formula that is converted. Tens of thousands of braces end the converter."""
LONGEST_PDF = 1_000_000
"""The characters of a PDF file after which its further pages are not read."""
MOST_MEMORY = 1 << 30
"""The bytes of address space that the program may take."""
SCROLLS = 'tabindex="0" role="group"'
COPY = '<button type="button" class="copy" aria-label="Copy code" title="Copy code">Copy</button>'
CLOSING = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
FORMATTER = HtmlFormatter(nowrap=True)
CONVERTER = LatexToMathML(fancy_error=False, id_prefix="formula-")


def html_of(text: str) -> str:
    """Return the HTML of a text in Markdown."""
    # Footnotes of several texts stand in one page, so their anchors need names of their own.
    return str(RENDERER.render(text, {"docId": f"{zlib.crc32(text.encode()):08x}"}))


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
    """The rendering rules that differ from markdown-it's and the plugins'."""

    def __init__(self, markdown: MarkdownIt) -> None:
        self._renderer: Any = markdown.renderer

    def code(self, tokens: Sequence[Any], i: int, options: Any, _env: MutableMapping[str, Any]) -> str:
        """Return a block of code that scrolls, also by keyboard, and can be copied."""
        made = self._renderer.fence(tokens, i, options, _env)
        return f'<div class="block">{COPY}<div class="code" {SCROLLS} aria-label="Code">{made}</div></div>\n'

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

    def task(self, tokens: Sequence[Any], i: int, _options: Any, _env: MutableMapping[str, Any]) -> str:
        """Return the box of a task. No other token is HTML, because HTML in texts is not read."""
        box = str(tokens[i].content)
        return box.replace("<input", f'<input aria-label="{"Done" if "checked=" in box else "To do"}"')

    def formula(self, tokens: Sequence[Any], i: int, _options: Any, _env: MutableMapping[str, Any]) -> str:
        """Return a formula as MathML, or its source if it cannot be converted.

        Its styles come as `data-style`, which the page's script sets, for styles are not allowed in HTML.
        """
        source, sign = str(tokens[i].content).strip(), tokens[i].markup
        is_block = sign in ("$$", r"\[")
        made = f"<code>{escape(f'{sign}{source}{CLOSING[sign]}')}</code>"
        if len(source) <= LONGEST_FORMULA:
            try:
                made = CONVERTER.convert_with_local_state(source, displaystyle=is_block)
                made = made.replace(' style="', ' data-style="')
            except LatexError:
                pass
        if not is_block:
            return made
        end = "\n" if tokens[i].block else ""
        return f'<span class="formula" {SCROLLS} aria-label="Formula">{made}</span>{end}'


def _bracketed(state: Any, silent: bool) -> bool:
    """Read a formula in LaTeX's brackets within a paragraph."""
    opening = state.src[state.pos : state.pos + 2]
    if opening not in (r"\(", r"\["):
        return False
    end = state.src.find(CLOSING[opening], state.pos + 2, state.posMax)
    if end < 0:
        return False
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content, token.markup = state.src[state.pos + 2 : end], opening
    state.pos = end + 2
    return True


def _bracketed_block(state: Any, first: int, last: int, silent: bool) -> bool:
    r"""Read a formula that begins a line with \[ and ends one with \], so that its lines are no lists."""
    begin = state.bMarks[first] + state.tShift[first]
    if not state.src.startswith(r"\[", begin) or state.is_code_block(first):
        return False
    end = state.src.find(r"\]", begin + 2)
    line = bisect.bisect_left(state.eMarks, end + 2, first, last)
    if end < 0 or line >= last or state.src[end + 2 : state.eMarks[line]].strip():
        return False
    if state.parentType == "blockquote" and line > first:
        return False  # each line begins with the quote's sign
    if not silent:
        state.line = line + 1
        token = state.push("math_block", "math", 0)
        token.block, token.content, token.markup = True, state.src[begin + 2 : end], r"\["
        token.map = [first, state.line]
    return True


def _made() -> MarkdownIt:
    options = {"html": False, "highlight": _highlighted}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("image")
    markdown.validateLink = _is_web
    markdown.use(footnote_plugin).use(tasklists_plugin)
    markdown.use(
        dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False,
        allow_blank_lines=False, double_inline=True,
    )  # fmt: skip
    markdown.inline.ruler.before("escape", "bracketed", _bracketed)
    ends = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    markdown.block.ruler.before("fence", "bracketed_block", _bracketed_block, ends)
    rules = _Rules(markdown)
    opened = f'<div class="table" {SCROLLS} aria-label="Table"><table>\n'
    given = {
        "fence": rules.code, "code_block": rules.code, "link_open": rules.link, "th_open": rules.cell,
        "td_open": rules.cell, "table_open": lambda *_: opened, "table_close": lambda *_: "</table></div>\n",
        "html_inline": rules.task, "math_inline": rules.formula, "math_inline_double": rules.formula,
        "math_block": rules.formula,
    }  # fmt: skip
    markdown.renderer.rules.update(given)
    return markdown


RENDERER = _made()


def pdf_text(data: str) -> str:
    """Return the text of a PDF file in base64, as far as `LONGEST_PDF`, and "" if none can be read."""
    from pypdf import PdfReader

    text = ""
    try:
        for page in PdfReader(io.BytesIO(base64.b64decode(data))).pages:
            text += page.extract_text() + "\n\n"
            if len(text) > LONGEST_PDF:
                break
    except Exception:  # files that are not as they should be raise all kinds of them
        return ""
    return text.strip()


JOBS = {"markdown": html_of, "pdf": pdf_text}


def main() -> None:
    """Answer each line of stdin, until it ends. The answer is "" for what is too much."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        job, data = json.loads(line)
        try:
            result = JOBS[job](data)
        except (RecursionError, MemoryError):
            result = ""
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
