"""Read the text that the demo pair is trained on: Python's standard library and Python's documentation.

Both are distributed under the PSF License 2.0 (documentation examples also under 0BSD). The text is read from
the places where Python and its documentation package are installed. This repository contains none of it.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LICENCE = "PSF-2.0 (Python standard library and documentation; documentation examples also 0BSD)"

#: Parts of the standard library's tree that have other authors, are generated, or are not Python 3 text.
_SKIPPED_PARTS = frozenset(
    {
        "site-packages",
        "__pycache__",
        "encodings",
        "pydoc_data",
        "data",
        "_bundled",
        "crashers",
        "cjkencodings",
        "bad_coding",
        "lib-dynload",
    }
)
_HELD_OUT_OF_1000 = 25
_MIN_BYTES, _MAX_BYTES = 200, 400_000


class CorpusError(RuntimeError):
    """Text that the training needs is not installed. The message says how to get it."""


@dataclass(frozen=True)
class Document:
    """One source file: its name relative to its origin, its kind and its text."""

    name: str
    kind: str
    text: str

    @property
    def held_out(self) -> bool:
        """Return True if this file is kept for evaluation. Its name alone decides."""
        digest = hashlib.sha256(f"{self.kind}:{self.name}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % 1000 < _HELD_OUT_OF_1000


def stdlib_dir() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def docs_dir() -> Path:
    """Return the folder of the documentation's reST sources as Debian's ``python3-doc`` installs them."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    roots = [Path(f"/usr/share/doc/python{version}/html/_sources")]
    roots += sorted(Path("/usr/share/doc").glob("python3.*/html/_sources"), reverse=True)
    for root in roots:
        if root.is_dir():
            return root
    raise CorpusError(
        "the sources of Python's documentation are not installed: `apt-get install python3-doc` "
        "(or pass --docs with the Doc directory of a CPython source tree)"
    )


def _reads_as_text(text: str) -> bool:
    """Return False for tables and generated data: many digits, long lines or much outside ASCII."""
    size = len(text)
    digits = sum(ch.isdigit() for ch in text)
    foreign = sum(ch > "\x7f" for ch in text)
    return digits < 0.12 * size and foreign < 0.03 * size and size < 90 * (text.count("\n") + 1)


def _read(root: Path, pattern: str, kind: str) -> Iterator[Document]:
    for path in sorted(root.rglob(pattern)):
        name = path.relative_to(root)
        if _SKIPPED_PARTS.intersection(name.parts) or not path.is_file():
            continue
        if not _MIN_BYTES <= path.stat().st_size <= _MAX_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8").replace("\r\n", "\n").expandtabs(8)
        except UnicodeDecodeError:
            continue
        if _reads_as_text(text):
            yield Document(name.as_posix(), kind, text)


def load(stdlib: Path | None = None, docs: Path | None = None) -> list[Document]:
    """Return all documents without duplicates, in a fixed order."""
    stdlib = stdlib or stdlib_dir()
    docs = docs or docs_dir()
    if not any(stdlib.glob("*.py")):
        raise CorpusError(f"no standard library sources in {stdlib}; install Python with its library")
    documents = [*_read(stdlib, "*.py", "stdlib"), *_read(docs, "*.rst*", "docs")]
    if not any(document.name.startswith("test/") for document in documents):
        print(
            "note: the library's own tests (Lib/test) are not installed; the text is about half as "
            "long without them. Debian: libpython3-testsuite",
            file=sys.stderr,
        )
    seen: set[str] = set()
    unique = []
    for document in documents:
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            unique.append(document)
    return unique


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Return the training documents and the held-out ones."""
    train = [document for document in documents if not document.held_out]
    held_out = [document for document in documents if document.held_out]
    return train, held_out
