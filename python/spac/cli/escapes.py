"""Escape sequences in a prompt of the command line. llama.cpp reads the same ones with --escape."""

from __future__ import annotations

import re

_MEANING = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|([nrt'"\\]))""")


def unescaped(text: str) -> str:
    r"""Return `text` with its escape sequences replaced.

    These are \n, \r, \t, quotes, \\ and bytes such as \x41. Other backslashes stay.
    """

    def meant(match: re.Match[str]) -> str:
        if match[2] is not None:
            return _MEANING[match[2]]
        byte = bytes([int(match[1], 16)])
        return byte.decode("utf-8", "surrogateescape")

    # Bytes that form a character in UTF-8 become that character. Others stay bytes.
    return _ESCAPE.sub(meant, text).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
