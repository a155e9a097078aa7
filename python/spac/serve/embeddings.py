"""Embeddings: checks of requests, and answers in OpenAI's form and in llama-server's own form."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from spac.machine.arrays import Float32Array
from spac.serve.choices import Prompt, prompts_of
from spac.serve.fields import refuse
from spac.serve.refusal import GONE, Refusal
from spac.serve.request_context import RequestContext

OPENAI = "/v1/embeddings"
PATHS = (OPENAI, "/embedding")
"""The paths of embeddings. llama-server's own form comes from the second one."""


def check(path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with a list of its texts or token lists, `input`; raise Refusal if it is invalid.

    As in llama-server, `content` may take the place of `input`, and asks for llama-server's own form.
    """
    name = "input" if "input" in request else "content"
    if "dimensions" in request:
        raise refuse("dimensions", "vectors keep the model's length here: leave it out")
    form = request.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise refuse("encoding_format", f"float or base64 is needed, not {form!r}")
    if request.get("embd_normalize", 2) != 2:
        raise refuse("embd_normalize", "vectors have the Euclidean length 1 here: leave it out")
    if name not in request:
        raise refuse("input", "a text, a list of tokens, or a list of these is needed")
    is_own = name == "content" or path != OPENAI
    return {**request, "input": prompts_of(request, name), "is_own": is_own, "encoding_format": form}


def embedded(llama: Any, name: str, context: RequestContext) -> Any:
    """Return the answer to a checked request, with the model's `name`; raise Refusal if it cannot be made."""
    request = context.request
    if llama.embedder is None:
        raise Refusal(400, "this server makes no embeddings: start it with --embeddings")
    inputs = [_tokens(llama, given) for given in request["input"]]
    vectors = []
    for tokens in inputs:
        if context.cancelled:
            raise Refusal(GONE, "cancelled")
        embed = functools.partial(llama.embedder.embed, tokens)
        # The context shares threads and experts with the one that generates.
        vectors.append(embed() if llama.engine is None else llama.engine.between.run(embed))
    if request["is_own"]:
        return [{"index": at, "embedding": [vector.tolist()]} for at, vector in enumerate(vectors)]
    return _openai(vectors, name, sum(map(len, inputs)), request["encoding_format"])


def _tokens(llama: Any, given: Prompt) -> list[int]:
    if isinstance(given, str):
        tokens: list[int] = llama.tokenize(given.encode("utf-8", "replace"), add_bos=True, special=True)
    else:
        llama.check_tokens(tokens := given, "input")
    if not tokens:
        raise refuse("input", "an empty text has no embedding")
    if len(tokens) > (limit := llama.embedder.limit):
        text = f"input: {len(tokens)} tokens are too many: embeddings take at most {limit} here"
        raise Refusal(400, text, code="context_length_exceeded", param="input")
    return tokens


def _openai(vectors: Sequence[Float32Array], name: str, n_tokens: int, form: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": at, "embedding": _encoded(vector, form)}
        for at, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "model": name, "data": data, "usage": usage}


def _encoded(vector: Float32Array, form: str) -> list[float] | str:
    """Return a vector as numbers, or as the base64 text of its little-endian float32 bytes."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers
