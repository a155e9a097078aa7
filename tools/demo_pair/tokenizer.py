"""Make a byte-level BPE that llama.cpp reads as model ``gpt2`` with the pre-tokenizer ``qwen2``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
PRE_TOKENIZER = "qwen2"

#: Callers of llama.cpp often provide 32 bytes for a token's text (llama-cpp-python does).
_LONGEST_TOKEN = 24

#: llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2, word for word.
_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges from ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.token_to_id(END_OF_TEXT) != END_OF_TEXT_ID or tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text gives a vocabulary of {tokenizer.get_vocab_size()}, not {vocab_size}")
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Read a tokenizer that :func:`train` made."""
    return Tokenizer.from_file(str(path))


def vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the tokens by id, and the merges as llama.cpp needs them (two pieces and a space between)."""
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    return tokens, merges
