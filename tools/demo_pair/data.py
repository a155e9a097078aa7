"""Read the text that the demo pair is trained on, and provide it as token streams and batches.

The text is Python's standard library and Python's documentation. Both are distributed under the PSF License
2.0 (documentation examples also under 0BSD). It is read from the places where Python and its documentation
package are installed. This repository contains none of it. Streams are arrays on disk, and batches come from
them in a repeatable order.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import tokenizer
from .config import CONTEXT_LENGTH

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

TOKENS_PER_BATCH = 2048

#: Length of the sequences of a step -> share of the steps.
_LENGTHS = ((512, 0.75), (1024, 0.15), (CONTEXT_LENGTH, 0.10))
_MOST_ROWS = TOKENS_PER_BATCH // min(_LENGTHS)[0]
_GOLDEN_RATIO = (5**0.5 - 1) / 2


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


@dataclass(frozen=True)
class Stream:
    """Tokens of whole documents. Document ``i`` is ``tokens[starts[i]:starts[i + 1]]``."""

    tokens: np.ndarray
    starts: np.ndarray
    byte_counts: np.ndarray
    names: list[str]

    def save(self, path: Path) -> None:
        """Write to an ``.npz`` file."""
        np.savez(path, tokens=self.tokens, starts=self.starts, byte_counts=self.byte_counts, names=self.names)

    @classmethod
    def load(cls, path: Path) -> Stream:
        """Read a file that :meth:`save` wrote."""
        with np.load(path) as file:
            names = [str(name) for name in file["names"]]
            return cls(file["tokens"], file["starts"], file["byte_counts"], names)

    def document(self, index: int) -> np.ndarray:
        """Return the tokens of one document, with its leading end-of-text token."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]


def _stream(documents: list[Document], encoder: tokenizer.Tokenizer) -> Stream:
    encoded = encoder.encode_batch([document.text for document in documents])
    parts = [np.array([tokenizer.END_OF_TEXT_ID, *item.ids], dtype=np.uint16) for item in encoded]
    return Stream(
        tokens=np.concatenate(parts),
        starts=np.concatenate([[0], np.cumsum([len(part) for part in parts])]),
        byte_counts=np.array([len(document.text.encode()) for document in documents]),
        names=[f"{document.kind}/{document.name}" for document in documents],
    )


def prepare(work: Path, stdlib: Path | None = None, docs: Path | None = None) -> None:
    """Read the corpus, train the tokenizer and write both streams. Do nothing if all files exist."""
    names = ("tokenizer.json", "train.npz", "held_out.npz")
    if all((work / name).exists() for name in names):
        return
    work.mkdir(parents=True, exist_ok=True)
    train, held_out = split(load(stdlib, docs))
    encoder = tokenizer.train(document.text for document in train)
    encoder.save(str(work / "tokenizer.json"))
    _stream(train, encoder).save(work / "train.npz")
    _stream(held_out, encoder).save(work / "held_out.npz")


class Batches:
    """Batches by number. The batch with a given number is always the same, whatever happened before.

    Rows begin at the points of a golden-ratio sequence, which covers the text evenly at any time. It puts
    rows of one batch, and of batches near each other, into different documents.
    """

    def __init__(self, stream: Stream, seed: int = 1) -> None:
        self.tokens, self.seed = stream.tokens, seed

    def get(self, number: int) -> tuple[Tensor, Tensor]:
        """Return inputs and next tokens, both [B, T] with B * T = ``TOKENS_PER_BATCH``."""
        lengths, shares = zip(*_LENGTHS, strict=True)
        length = int(np.random.default_rng((self.seed, number)).choice(lengths, p=shares))
        places = self.seed * 0.5 + np.arange(TOKENS_PER_BATCH // length) + number * _MOST_ROWS
        begins = (places * _GOLDEN_RATIO % 1.0 * (len(self.tokens) - length - 1)).astype(int)
        rows = np.stack([self.tokens[begin : begin + length + 1] for begin in begins]).astype(np.int64)
        return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
