"""Provide token streams: the corpus as arrays on disk, and batches from it in a repeatable order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import corpus, tokenizer
from .config import CONTEXT_LENGTH

TOKENS_PER_BATCH = 2048

#: Length of the sequences of a step -> share of the steps.
_LENGTHS = ((512, 0.75), (1024, 0.15), (CONTEXT_LENGTH, 0.10))
_MOST_ROWS = TOKENS_PER_BATCH // min(_LENGTHS)[0]
_GOLDEN_RATIO = (5**0.5 - 1) / 2


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


def _stream(documents: list[corpus.Document], encoder: tokenizer.Tokenizer) -> Stream:
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
    train, held_out = corpus.split(corpus.load(stdlib, docs))
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
