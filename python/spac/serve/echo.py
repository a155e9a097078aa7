"""Completions that repeat their prompt (`echo`), also with the log probabilities of its tokens.

llama.cpp's handlers do not repeat prompts. Programs that compare the likelihood of texts ask for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spac.engine.scoring import score
from spac.serve.refusal import Refusal

if TYPE_CHECKING:
    from spac.engine import Engine
    from spac.model.c_api import Model, TokenArray

MOST_TOP = 20
"""The most alternatives that are reported of each token of a prompt."""


@dataclass
class _Prompt:
    text: str
    tokens: TokenArray
    has_begin: bool
    """True if the first token is the model's token for the beginning of a text, which has no text."""


class Echo:
    """Puts the prompts of a request of `/v1/completions` before its answers."""

    def __init__(self, request: Mapping[str, Any], engine: Engine) -> None:
        """Read a request. Raise Refusal for a prompt that cannot be repeated, and for odd `logprobs`."""
        self._engine = engine
        self._prompts = [_prompt(each, engine.target) for each in _prompts_of(request.get("prompt"))]
        n, top = request.get("n", request.get("n_cmpl")), request.get("logprobs", request.get("n_probs"))
        self._each = n if isinstance(n, int) and n > 0 else 1
        if top is True or not isinstance(top, int | None) or not 0 <= (top or 0) <= MOST_TOP:
            raise Refusal(400, f"logprobs must be a whole number from 0 to {MOST_TOP} with echo")
        self._n_top = top or None
        self._is_all = request.get("max_tokens", request.get("n_predict")) == 0  # llama.cpp makes one token
        self._logprobs: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}  # characters that were handed out, by the choice's index

    def prepare(self, is_cancelled: Callable[[], bool]) -> None:
        """Compute the log probabilities of the prompts, if the request asks for them."""
        if self._n_top is None:
            return
        model = self._engine.target
        for each in self._prompts:
            scores = score(self._engine, each.tokens, self._n_top, is_cancelled=is_cancelled)
            skipped = 1 if each.has_begin else 0
            tokens = each.tokens[skipped:].tolist()
            best: list[dict[str, float] | None] = [
                {
                    _text(model, token): _finite(value)
                    for token, value in reversed(list(zip(*row, strict=True)))
                }
                for row in zip(scores.top_ids.tolist(), scores.top.tolist(), strict=True)
            ]
            chosen: list[float | None] = [_finite(value) for value in scores.chosen.tolist()]
            if not skipped:
                chosen, best = [None, *chosen], [None, *best]
            self._logprobs.append(_columns([_text(model, token) for token in tokens], chosen, best))

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer."""
        answer = json.loads(body)
        self._change(answer)
        return json.dumps(answer).encode()

    def part(self, events: bytes) -> bytes:
        """Return some whole events of a stream."""
        return b"\n\n".join(map(self._event, events.split(b"\n\n")))

    def _event(self, event: bytes) -> bytes:
        head, mark, data = event.partition(b"data: {")
        if not mark:
            return event
        told = json.loads(b"{" + data)
        self._change(told)
        return head + b"data: " + json.dumps(told).encode()

    def _change(self, answer: dict[str, Any]) -> None:
        for choice in answer.get("choices") or ():
            index = choice.get("index", 0)
            place = min(index // self._each, len(self._prompts) - 1)
            is_first = index not in self._places
            ahead = self._places.setdefault(index, 0)
            own = _of_content(None if self._is_all else choice.get("logprobs"))
            if self._is_all:
                choice["text"] = ""
            if is_first:
                choice["text"] = self._prompts[place].text + (choice.get("text") or "")
                own = _joined(self._logprobs[place], own) if self._n_top is not None else own
            if self._n_top is not None:
                choice["logprobs"] = {**own, "text_offset": [ahead + at for at in own["text_offset"]]}
                self._places[index] += sum(map(len, own["tokens"]))
        if self._is_all and isinstance(usage := answer.get("usage"), dict):
            usage["completion_tokens"], usage["total_tokens"] = 0, usage.get("prompt_tokens", 0)


def _prompts_of(prompt: Any) -> list[Any]:
    """Return the prompts of a request: texts, and lists of tokens."""
    if isinstance(prompt, list) and not all(isinstance(each, int) for each in prompt):
        return prompt
    return [prompt]


def _prompt(given: Any, model: Model) -> _Prompt:
    if isinstance(given, str):
        tokens = model.tokenize(given)
        return _Prompt(given, tokens, model.adds_begin)
    if isinstance(given, list) and given and all(type(each) is int for each in given):
        if min(given) < 0 or max(given) >= model.n_tokens:
            raise Refusal(400, f"prompt: tokens must be from 0 to {model.n_tokens - 1}")
        text = b"".join(model.piece(each, special=True) for each in given).decode("utf-8", "replace")
        return _Prompt(text, np.array(given, np.int32), False)
    raise Refusal(400, "echo repeats a text or a list of tokens, and the prompt is neither")


def _finite(logarithm: float) -> float:
    """Return a logarithm that JSON can hold; OpenAI has this number for what cannot be."""
    return max(logarithm, -9999.0)


def _text(model: Model, token: int) -> str:
    return model.piece(token, special=True).decode("utf-8", "replace")


def _columns(
    tokens: Sequence[str], chosen: Sequence[float | None], best: Sequence[dict[str, float] | None]
) -> dict[str, Any]:
    """Return log probabilities in the form of OpenAI's completions; places count characters."""
    places, at = [], 0
    for token in tokens:
        places.append(at)
        at += len(token)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": best, "text_offset": places}


def _of_content(logprobs: Any) -> dict[str, Any]:
    """Return llama-server's form of log probabilities in the form of OpenAI's completions."""
    content = (logprobs or {}).get("content") or []
    return _columns(
        [each["token"] for each in content],
        [each["logprob"] for each in content],
        [{top["token"]: top["logprob"] for top in each.get("top_logprobs", ())} for each in content],
    )


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    ahead = sum(map(len, first["tokens"]))
    joined = {name: [*first[name], *second[name]] for name in first}
    joined["text_offset"][len(first["tokens"]) :] = [ahead + at for at in second["text_offset"]]
    return joined
