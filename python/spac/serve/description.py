"""Descriptions of the served model, and its tokens, in llama-server's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama_cpp

from spac import __version__
from spac.serve import fields


def described(llama: Any, name: str, template: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return llama-server's properties of the model; `given` are the default sampling parameters."""
    end, engine = llama.token_eos(), llama.engine
    sees = engine is not None and engine.projector is not None
    return {
        "default_generation_settings": {"n_ctx": llama.n_ctx(), "params": dict(given)},
        "total_slots": engine.batch.n_sequences if engine is not None and engine.batch is not None else 1,
        "model_alias": name,
        "model_path": llama.model_path,
        "modalities": {"vision": sees, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": template or llama.target.chat_template or "",
        "bos_token": llama.target.begin_text,
        "eos_token": _piece(llama, end) if end >= 0 else "",
        "build_info": f"spac {__version__}",
        "is_sleeping": False,
    }


def meta_of(llama: Any) -> dict[str, Any]:
    """Return llama-server's figures of the model: sizes in tokens, parameters and bytes."""
    return {
        "vocab_type": llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(llama.model)),
        "n_vocab": llama.n_vocab(),
        "n_ctx": llama.n_ctx(),
        "n_ctx_train": llama_cpp.llama_model_n_ctx_train(llama.model),
        "n_embd": llama.n_embd(),
        "n_params": llama_cpp.llama_model_n_params(llama.model),
        "size": llama_cpp.llama_model_size(llama.model),
    }


def tokenized(llama: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of /tokenize. It only reads the vocabulary, as `detokenized` does."""
    text = fields.text(request.get("content", ""), "content")
    tokens = llama.tokenize(
        text.encode("utf-8", "replace"),
        add_bos=fields.flag(request.get("add_special", False), "add_special"),
        special=fields.flag(request.get("parse_special", True), "parse_special"),
    )
    if fields.flag(request.get("with_pieces", False), "with_pieces"):
        return {"tokens": [{"id": token, "piece": _piece(llama, token)} for token in tokens]}
    return {"tokens": tokens}


def detokenized(llama: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of /detokenize."""
    tokens = request.get("tokens", [])
    if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        raise fields.refuse("tokens", "a list of tokens is needed")
    llama.check_tokens(tokens, "tokens")
    return {"content": b"".join(_bytes(llama, token) for token in tokens).decode("utf-8", "replace")}


def _bytes(llama: Any, token: int) -> bytes:
    return bytes(llama.target.piece(token, special=True))


def _piece(llama: Any, token: int) -> str | list[int]:
    """Return a token's text, or its bytes if they are no text."""
    data = _bytes(llama, token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
