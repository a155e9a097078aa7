"""Chat templates in the style of model families, written for the tests, and models that have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
from gguf import GGUFReader, GGUFWriter, TokenType
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from tools.clients.serving import TEMPLATE

THINKING = TEMPLATE.read_text().removesuffix("\n")
"""ChatML with reasoning in <think> and calls in <tool_call>."""

CHANNELS = """\
{%- for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}{% if m.thinking and loop.last -%}
<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final{% endif -%}
<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""Channels, as gpt-oss has them."""
CHANNEL_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
END_TOKENS = ("<|return|>", "<|call|>")
"""If these are in a vocabulary, llama.cpp takes <|end|> as the end of a message, not of the answer."""
THINKING_TOKENS = ("<think>", "</think>")

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "the sum",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
"""A tool for requests with tools."""


def with_template(source: Path, target: Path, template: str, control: Sequence[str] = ()) -> Path:
    """Write a model's copy with a chat template, and `control` tokens for unused ones. Return its path."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    changed = {"tokenizer.chat_template": MetadataDetails(gguf.GGUFValueType.STRING, template)}
    if control:
        tokens = list(reader.fields["tokenizer.ggml.tokens"].contents())
        kinds = list(reader.fields["tokenizer.ggml.token_type"].contents())
        unused = [i for i, kind in enumerate(kinds) if kind == TokenType.UNUSED]
        for i, text in zip(unused, control, strict=False):
            tokens[i], kinds[i] = text, int(TokenType.CONTROL)
        assert len(unused) >= len(control)
        array = gguf.GGUFValueType.ARRAY
        changed["tokenizer.ggml.tokens"] = MetadataDetails(array, tokens)
        changed["tokenizer.ggml.token_type"] = MetadataDetails(array, kinds)
    copy_with_new_metadata(reader, writer, changed, [])
    return target
