"""Read the text that the demo pair is trained on, and provide it as token streams and batches.

The text is Python's standard library and Python's documentation, under the PSF License 2.0. It is read from
the places where Python and its documentation package are installed. This repository contains none of it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

LICENCE = "PSF-2.0 (Python standard library and documentation; documentation examples also 0BSD)"
VOCAB_SIZE, CONTEXT_LENGTH, TOKENS_PER_BATCH = 4096, 2048, 2048
END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 0

PRE_TOKENIZER = "qwen2"
_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2, word for word."""
_LONGEST_TOKEN = 24
"""Callers of llama.cpp often provide 32 bytes for a token's text (llama-cpp-python does)."""

_SKIPPED_PARTS = frozenset({
    "site-packages", "__pycache__", "encodings", "pydoc_data", "data", "_bundled", "crashers",
    "cjkencodings", "bad_coding", "lib-dynload",
})  # fmt: skip
"""Parts of the standard library's tree that have other authors, are generated, or are not Python 3 text."""
_HELD_OUT_OF_1000 = 25
_MIN_BYTES, _MAX_BYTES = 200, 400_000

_LENGTHS = {512: 0.75, 1024: 0.15, CONTEXT_LENGTH: 0.10}
"""Lengths of the sequences of a step, with their shares of the steps."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2


class CorpusError(RuntimeError):
    """Text that the training needs is not installed. The message says how to get it."""


def docs_dir() -> Path:
    """Return the folder of the documentation's reST sources as Debian's ``python3-doc`` installs them."""
    for root in sorted(Path("/usr/share/doc").glob("python3.*/html/_sources"), reverse=True):
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


def _read(root: Path, pattern: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each usable file."""
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
            yield f"{kind}:{name.as_posix()}", text


def load(stdlib: Path | None = None, docs: Path | None = None) -> tuple[list[str], list[str]]:
    """Return the texts for training and the held-out ones, without duplicates, in a fixed order. A file's
    name alone decides if it is held out."""
    stdlib = stdlib or Path(sysconfig.get_paths()["stdlib"])
    docs = docs or docs_dir()
    if not any(stdlib.glob("*.py")):
        raise CorpusError(f"no standard library sources in {stdlib}; install Python with its library")
    named = [*_read(stdlib, "*.py", "stdlib"), *_read(docs, "*.rst*", "docs")]
    if not any(name.startswith("stdlib:test/") for name, _ in named):
        print(
            "note: the library's own tests (Lib/test) are not installed; the text is about half as "
            "long without them. Debian: libpython3-testsuite",
            file=sys.stderr,
        )
    unique = {text: name for name, text in reversed(named)}  # the first name of each text
    train, held_out = list[str](), list[str]()
    for text, name in reversed(unique.items()):
        digest = hashlib.sha256(name.encode()).digest()
        is_held_out = int.from_bytes(digest[:4], "big") % 1000 < _HELD_OUT_OF_1000
        (held_out if is_held_out else train).append(text)
    return train, held_out


def learn_tokenizer(texts: list[str]) -> Tokenizer:
    """Learn a byte-level BPE that llama.cpp reads as model ``gpt2`` with the pre-tokenizer ``qwen2``."""
    encoder = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[END_OF_TEXT], max_token_length=_LONGEST_TOKEN,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    encoder.train_from_iterator(texts, trainer)
    if encoder.token_to_id(END_OF_TEXT) != END_OF_TEXT_ID or encoder.get_vocab_size() != VOCAB_SIZE:
        raise CorpusError(f"the text gives a vocabulary of {encoder.get_vocab_size()}, not {VOCAB_SIZE}")
    return encoder


def load_tokenizer(work: Path) -> Tokenizer:
    return Tokenizer.from_file(str(work / "tokenizer.json"))


def vocabulary(encoder: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the tokens by id, and the merges as llama.cpp needs them (two pieces and a space between)."""
    state = json.loads(encoder.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    return tokens, merges


@dataclass(frozen=True)
class Stream:
    """The tokens of whole texts, each after an end-of-text token, and the number of texts and of bytes."""

    tokens: np.ndarray
    n_text: int
    n_byte: int

    @classmethod
    def load(cls, path: Path) -> Stream:
        with np.load(path) as file:
            return cls(file["tokens"], int(file["n_text"]), int(file["n_byte"]))


def prepare(work: Path, stdlib: Path | None = None, docs: Path | None = None) -> None:
    """Read the corpus, train the tokenizer and write both streams. Do nothing if all files exist."""
    if all((work / name).exists() for name in ("tokenizer.json", "train.npz", "held_out.npz")):
        return
    work.mkdir(parents=True, exist_ok=True)
    train, held_out = load(stdlib, docs)
    encoder = learn_tokenizer(train)
    encoder.save(str(work / "tokenizer.json"))
    for name, texts in (("train", train), ("held_out", held_out)):
        parts = [np.array([END_OF_TEXT_ID, *each.ids], np.uint16) for each in encoder.encode_batch(texts)]
        n_byte = sum(len(text.encode()) for text in texts)
        np.savez(work / f"{name}.npz", tokens=np.concatenate(parts), n_text=len(texts), n_byte=n_byte)


def batch(tokens: np.ndarray, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return inputs and next tokens, both [B, T] with B * T = ``TOKENS_PER_BATCH``. The batch with a given
    number is always the same.

    Rows begin at the points of a golden-ratio sequence, which covers the text evenly at any time. It puts
    rows of one batch, and of batches near each other, into different texts.
    """
    length = int(np.random.default_rng((seed, number)).choice([*_LENGTHS], p=[*_LENGTHS.values()]))
    places = seed * 0.5 + np.arange(TOKENS_PER_BATCH // length) + number * (TOKENS_PER_BATCH // min(_LENGTHS))
    begins = (places * _GOLDEN_RATIO % 1.0 * (len(tokens) - length - 1)).astype(int)
    rows = torch.from_numpy(rows_of(tokens, begins, length + 1))
    return rows[:, :-1], rows[:, 1:]


def rows_of(tokens: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """Return pieces of a stream, int64 [len(begins), length]."""
    return np.stack([tokens[begin : begin + length] for begin in begins]).astype(np.int64)
