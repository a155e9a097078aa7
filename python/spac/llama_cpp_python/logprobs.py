"""Log probabilities of generated tokens for `spac.Llama`, in OpenAI's forms, without `logits_all`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import llama_cpp.llama_cpp as api
import numpy as np
import numpy.typing as npt

from spac.errors import InputError
from spac.model.c_api import token_piece

if TYPE_CHECKING:
    from spac import _core

IMPOSSIBLE = -9999.0  # as OpenAI says it; JSON has no infinity


class TokenLogprob(NamedTuple):
    """A token and how probable the model held it where it came, before any sampler; natural logarithms."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """The most probable tokens of that place, best first."""


class Logprobs:
    """Records what is generated. A logits processor that changes nothing, for that is how it gets to where
    tokens are generated: the native session fills it after every step, llama_cpp's own loop calls it."""

    def __init__(self, n_top: int) -> None:
        """`n_top`: of how many alternatives."""
        self.n_top = n_top
        self.taken: list[TokenLogprob] = []
        """Of the tokens that were handed out."""
        self._ahead: deque[tuple[float, list[tuple[int, float]]]] = deque()
        self._row: npt.NDArray[np.float32] | None = None

    def __call__(
        self, _input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        self._row = np.array(scores, np.float32)
        return scores

    def begin(self) -> None:
        """A generation begins: what an interrupted one had in hand was never handed out."""
        self._ahead.clear()
        self._row = None

    def note(self, session: _core.Session) -> None:
        """The session has made a step."""
        chosen, ids, top = session.probabilities(self.n_top)
        alternatives = [
            list(zip(*both, strict=True)) for both in zip(ids.tolist(), top.tolist(), strict=True)
        ]
        self._ahead.extend(zip(chosen.tolist(), alternatives, strict=True))

    def take(self, token: int) -> None:
        """The next token is handed out."""
        if self._row is not None:
            logits = self._row.astype(np.float64)
            logarithms = logits - np.logaddexp.reduce(logits)
            best = np.argsort(-logits, kind="stable")[: self.n_top]
            self._row = None
            self._ahead.append((float(logarithms[token]), [(int(i), float(logarithms[i])) for i in best]))
        self.taken.append(TokenLogprob(token, *self._ahead.popleft()))


class CompletionLogprobs(dict[str, Any]):
    """In the form of OpenAI's completions; `content` is that of its chats."""

    content: list[dict[str, Any]]


def chat_logprobs(told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A completion's log probabilities in the form of a chat."""
    if told is None:
        return None
    if isinstance(told, CompletionLogprobs):
        return {"content": told.content, "refusal": None}
    rows = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
    content = [
        {
            **_entry(token.encode(), logprob),
            "top_logprobs": [_entry(other.encode(), value) for other, value in (top or {}).items()],
        }
        for token, logprob, top in rows
    ]
    return {"content": content, "refusal": None}


def n_alternatives(logprobs: int, keywords: Mapping[str, Any]) -> int:
    """How many a completion asks for. Raises InputError for what cannot be had; `keywords` are its others."""
    if logprobs < 0:
        raise InputError(f"logprobs: a number of alternatives is needed, 0 or more, not {logprobs}")
    if keywords.get("echo"):
        raise InputError(
            "echo and logprobs together need the logits of the whole prompt: spac.Llama(…, logits_all=True) "
            "keeps them"
        )
    return int(logprobs)


def with_logprobs(
    llama: Any, made: Generator[dict[str, Any]], recorded: Logprobs, asked: Mapping[str, Any]
) -> Generator[dict[str, Any]]:
    """The parts of a completion, all of it or a stream's, with what was `recorded` of the tokens that begin
    in their text. `asked`: the arguments of `create_completion`."""
    telling = _Telling(llama, recorded, asked)
    with contextlib.closing(made):
        for part in made:
            choice = part["choices"][0]
            found = telling.of(choice["text"], is_end=choice["finish_reason"] is not None)
            if found["tokens"] or not asked.get("stream"):
                choice["logprobs"] = found
            yield part


class _Place(NamedTuple):
    """Where a token begins in the answer: bytes and characters before it."""

    byte: int
    character: int


class _Telling:
    """Which tokens belong to which part of a completion."""

    def __init__(self, llama: Any, recorded: Logprobs, asked: Mapping[str, Any]) -> None:
        self._llama, self._vocab, self._recorded = llama, llama._model.vocab, recorded
        prompt, stop = asked.get("prompt", ""), asked.get("stop") or []
        text = prompt if isinstance(prompt, str) else llama.detokenize(list(prompt)).decode("utf-8", "ignore")
        self._offset = len(text)
        self._stops = [each.encode() for each in ([stop] if isinstance(stop, str) else stop)]
        # As llama_cpp: an answer to nothing follows the beginning token; a space behind that is not text.
        self._tokens: list[int] = [] if len(prompt) else [llama.token_bos()]
        self._n_seen = self._n_told = 0
        self._end = self._measured()
        self._waiting: deque[tuple[_Place, TokenLogprob]] = deque()

    def of(self, text: str, *, is_end: bool) -> CompletionLogprobs:
        """Of the next part, with this text; `is_end`: it is the last one."""
        self._n_told += len(text)
        self._look()
        limit = self._stopped_at() if is_end else None
        found = []
        while self._waiting:
            place = self._waiting[0][0]
            if is_end:
                if limit is not None and place.byte >= limit:
                    break
            elif place.character >= self._n_told:
                break
            found.append(self._waiting.popleft())
        return self._form(found)

    def _look(self) -> None:
        """At what was handed out since."""
        for each in self._recorded.taken[self._n_seen :]:
            self._n_seen += 1
            if not api.llama_vocab_is_eog(self._vocab, each.token):  # else it ends the text
                self._waiting.append((self._end, each))
                self._tokens.append(each.token)
                self._end = self._measured()

    def _measured(self) -> _Place:
        text = self._llama.detokenize(self._tokens)
        return _Place(len(text), len(text.decode("utf-8", "ignore")))

    def _stopped_at(self) -> int | None:
        """The byte at which a stop text ended the answer, if one did."""
        text = self._llama.detokenize(self._tokens)
        return next((text.index(stop) for stop in self._stops if stop in text), None)

    def _form(self, found: Sequence[tuple[_Place, TokenLogprob]]) -> CompletionLogprobs:
        told = CompletionLogprobs(tokens=[], text_offset=[], token_logprobs=[], top_logprobs=[])
        told.content = []
        for place, (token, logprob, top) in found:
            own = _entry(self._piece(token), logprob)
            others = [_entry(self._piece(other), value) for other, value in top]
            told.content.append({**own, "top_logprobs": others})
            told["tokens"].append(own["token"])
            told["text_offset"].append(self._offset + place.character)
            told["token_logprobs"].append(own["logprob"])
            by_text: dict[str, float] = {}
            for entry in others:
                by_text.setdefault(entry["token"], entry["logprob"])
            by_text[own["token"]] = own["logprob"]
            told["top_logprobs"].append(by_text)
        return told

    def _piece(self, token: int) -> bytes:
        return token_piece(self._vocab, token, special=True)


def _entry(piece: bytes, logprob: float | None) -> dict[str, Any]:
    """Bytes that are no text (a part of a character) are written as OpenAI does: \\xe2\\x82."""
    value = logprob if logprob is None else float(logprob) if logprob >= IMPOSSIBLE else IMPOSSIBLE
    return {"token": piece.decode("utf-8", "backslashreplace"), "bytes": list(piece), "logprob": value}
