"""Provide the stories that the demo pair is trained on (`stories.py`) as token streams and batches."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from .stories import Story, stories

VOCAB_SIZE, CONTEXT_LENGTH, TOKENS_PER_BATCH = 4096, 2048, 2048
END_OF_TEXT, BEGIN_TURN, END_TURN = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT_ID, END_TURN_ID = 0, 2

PRE_TOKENIZER = "qwen2"
_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2, word for word."""
_LONGEST_TOKEN = 24
"""Callers of llama.cpp often provide 32 bytes for a token's text (llama-cpp-python does)."""

_HELD_OUT_OF_1000 = 25
_ASKED, _TWICE = 0.7, 0.3
"""The share of the texts that have questions, and of these that have two."""

_LENGTHS = {512: 0.75, 1024: 0.15, CONTEXT_LENGTH: 0.10}
"""Lengths of the sequences of a step, with their shares of the steps."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2


class CorpusError(RuntimeError):
    """The text does not suffice for the training."""


def turn(story: Story) -> str:
    """Return a question and its story in the form of the chat template."""
    return f"{BEGIN_TURN}user\n{story.question}{END_TURN}\n{BEGIN_TURN}assistant\n{story.story}{END_TURN}\n"


def texts_of(stories: list[Story]) -> tuple[list[str], list[str]]:
    """Return the texts for training and the held-out ones, in a fixed order.

    A text is a story, or a dialogue of one or two questions. A story alone decides if it is held out.
    """
    random, found = Random(0), (list[str](), list[str]())
    unique = list({each.story: each for each in stories}.values())
    for held_out, texts in enumerate(found):
        rest = [each for each in unique if _is_held_out(each) == bool(held_out)]
        while rest:
            asked = random.random() < _ASKED
            n = 2 if asked and random.random() < _TWICE else 1
            texts.append("".join(map(turn, rest[-n:])) if asked else rest[-1].story)
            del rest[-n:]
    return found


def _is_held_out(story: Story) -> bool:
    digest = hashlib.sha256(story.story.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < _HELD_OUT_OF_1000


def learn_tokenizer(texts: list[str]) -> Tokenizer:
    """Learn a byte-level BPE that llama.cpp reads as model ``gpt2`` with the pre-tokenizer ``qwen2``."""
    encoder = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=list(SPECIALS), max_token_length=_LONGEST_TOKEN,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    encoder.train_from_iterator(texts, trainer)
    if encoder.get_vocab_size() != VOCAB_SIZE:
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


def prepare(work: Path, workers: int) -> None:
    """Let the stories be written, and write the tokenizer and both streams, unless all files exist."""
    if all((work / name).exists() for name in ("tokenizer.json", "train.npz", "held_out.npz")):
        return
    work.mkdir(parents=True, exist_ok=True)
    train, held_out = texts_of(stories(work / "stories", workers))
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
