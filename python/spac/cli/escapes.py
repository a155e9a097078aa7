"""Backslashes in a prompt of the command line, as llama.cpp reads them with --escape."""

from __future__ import annotations

import re

_MEANING = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|([nrt'"\\]))""")


def unescaped(text: str) -> str:
    r"""`text` with \n, \t and so on, and with bytes as in \x41, as what they stand for; other backslashes
    stay."""

    def meant(match: re.Match[str]) -> str:
        if match[2] is not None:
            return _MEANING[match[2]]
        byte = bytes([int(match[1], 16)])
        return byte.decode("utf-8", "surrogateescape")

    # Bytes that make a character together become it; others stay bytes.
    return _ESCAPE.sub(meant, text).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
