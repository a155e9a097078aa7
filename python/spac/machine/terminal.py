"""Lines that are broken between words, as wide as the terminal."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TextIO

_COLUMN = re.compile(r" *(?:\S+(?: \S+)*  +)?")
"""The space at a line's beginning, or its first column: words, and two spaces or more after them."""


def wrapped(text: str, stream: TextIO | None) -> str:
    """Return a text whose lines fit on the terminal that `stream` is; the text itself for any other stream.

    Further lines stand below a line's second column if it has two, as a table's row has.
    """
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (OSError, ValueError):  # no terminal, or a closed stream
        return text
    return "\n".join(_fold(line, width) for line in text.split("\n")) if width else text


def _fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    column = _COLUMN.match(line)
    n = column.end() if column is not None else 0
    indent = " " * (n if 0 < n < width / 2 else 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
