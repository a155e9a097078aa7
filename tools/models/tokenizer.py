"""Make a byte-level tokenizer small enough for a tiny model: 256 bytes, a few merges, a few special
tokens."""

from __future__ import annotations

from gguf import GGUFWriter, TokenType

# Frequent pairs of English and of Python sources. Each is a token made of two tokens before it.
_MERGES = ["Ġ t", "h e", "i n", "r e", "Ġ a", "Ġt he", "e r", "o n", "Ġ Ġ", "ĠĠ ĠĠ", "s e", "l f"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]


def byte_symbols() -> list[str]:
    """Return the printable symbol that stands for each byte in byte-level BPE, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in symbols)
    symbols.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [symbols[byte] for byte in range(256)]


def n_tokens() -> int:
    """Return the number of tokens of the unpadded vocabulary."""
    return 256 + len(_MERGES) + len(SPECIALS)


def write_tokenizer(writer: GGUFWriter, n_vocab: int = 0, *, pad: str = "<|unused_{}|>") -> int:
    """Write the tokenizer's metadata, padded with unused tokens to `n_vocab`. Return the number of tokens.

    The end-of-text token also begins a text, and no token is added to a prompt by itself.
    """
    tokens = byte_symbols() + [merge.replace(" ", "") for merge in _MERGES]
    types = [TokenType.NORMAL] * len(tokens)
    first_special = len(tokens)
    tokens += SPECIALS
    types += [TokenType.CONTROL] * len(SPECIALS)
    if n_vocab and n_vocab < len(tokens):
        raise ValueError(f"n_vocab {n_vocab} is less than the tokenizer's {len(tokens)} tokens")
    for i in range(len(tokens), n_vocab):
        tokens.append(pad.format(i))
        types.append(TokenType.UNUSED)
    turn, unused = first_special + 2, first_special + 3
    write_bpe(writer, "gpt-2", tokens, types, _MERGES, end=first_special, end_of_turn=turn, pad=unused)
    return len(tokens)


def write_bpe(
    writer: GGUFWriter, pre: str, tokens: list[str], types: list[TokenType], merges: list[str], *, end: int,
    end_of_turn: int, pad: int, begins: bool = False,
) -> None:  # fmt: skip
    """Write the metadata of a byte-level BPE. Its token `end` ends texts, and begins them if it `begins`."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end_of_turn)
    writer.add_pad_token_id(pad)
    writer.add_add_bos_token(begins)
