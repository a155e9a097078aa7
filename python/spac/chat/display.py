"""Where answers go: as they come to a file or a pipe, as rendered Markdown to a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from spac.errors import InputError

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REFRESH_PER_S = 8


class Display(Protocol):
    """Shows one answer, from its first piece to its last; what has come stays when the pieces fail."""

    def show(self, pieces: Iterator[str], status: Callable[[], str]) -> None: ...


def visible(text: str) -> str:
    """`text` without what a terminal would obey: models may write escape sequences."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


class Plain:
    """Pieces as they come. On a terminal without control characters, elsewhere exactly as they are."""

    def __init__(self, *, terminal: bool) -> None:
        self._clean = visible if terminal else str

    def show(self, pieces: Iterator[str], _status: Callable[[], str]) -> None:
        out = sys.stdout
        try:
            for piece in pieces:
                out.write(self._clean(piece))
                out.flush()
        finally:
            out.write("\n")
            out.flush()


class Markdown:
    """Rendered blocks. Those that are complete are printed for good; the last one is drawn anew while it
    grows, as much of it as fits on the screen, with the figures below."""

    def __init__(self) -> None:
        """Raises InputError when rich is missing."""
        try:
            from rich.console import Console
        except ImportError:
            raise InputError(
                "rendered Markdown needs rich: run `pip install 'spac[chat]'`, or add --no-markdown"
            ) from None
        self._console: Any = Console(highlight=False)
        self._tail = ""
        self._status: Callable[[], str] = str

    def show(self, pieces: Iterator[str], status: Callable[[], str]) -> None:
        from rich.live import Live

        self._tail, self._status, first = "", status, True
        live = Live(
            console=self._console,
            get_renderable=self._growing,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            vertical_overflow="crop",
        )
        try:
            with live:
                for piece in pieces:
                    self._tail += visible(piece)
                    if "\n" in piece:
                        complete, self._tail = split_blocks(self._tail)
                        first = self._print(complete, first)
        finally:
            rest, self._tail = self._tail, ""
            self._print(rest, first)

    def _print(self, text: str, first: bool) -> bool:
        """Print blocks, with an empty line before all but the first; returns whether the first is to come."""
        if not text.strip():
            return first
        if not first:
            self._console.print()
        self._console.print(rendered(text))
        return False

    def _growing(self) -> Any:
        from rich.console import Group
        from rich.segment import SegmentLines
        from rich.text import Text

        console = self._console
        lines = console.render_lines(rendered(self._tail), pad=False) if self._tail else []
        fit = max(1, console.size.height - 3)
        return Group(
            SegmentLines(lines[-fit:], new_lines=True),
            Text(self._status(), style="dim", no_wrap=True, overflow="ellipsis"),
        )


def _parser() -> Any:
    from markdown_it import MarkdownIt

    # Without HTML: a renderer for terminals would drop it, and <think> with it.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def rendered(text: str) -> Any:
    """Markdown as rich draws it, with HTML as the text that it is."""
    from rich import markdown

    drawn = markdown.Markdown(text)
    drawn.parsed = _parser().parse(text)
    return drawn


def split_blocks(text: str) -> tuple[str, str]:
    """The blocks that are complete, and the last one, which may still grow. Together they are `text`."""
    starts = [
        token.map[0]
        for token in _parser().parse(text)
        if token.level == 0 and token.nesting >= 0 and token.map
    ]
    if len(starts) < 2:
        return "", text
    lines = text.split("\n")
    complete = "".join(line + "\n" for line in lines[: starts[-1]])
    return complete, text[len(complete) :]
