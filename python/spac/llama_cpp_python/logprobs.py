"""Log probabilities of generated tokens for `spac.Llama`, in OpenAI's formats and without `logits_all`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as api
import numpy as np
import numpy.typing as npt

from spac import _core
from spac.engine.loop_sequence import LoopSequence
from spac.errors import InputError
from spac.machine.arrays import Float32Array

IMPOSSIBLE = -9999.0  # OpenAI uses this number, because JSON has no infinity.


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability at its place, before any sampler."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """The most probable tokens at that place with their log probabilities, best first."""


class Logprobs:
    """A recorder of the log probabilities of generated tokens.

    It is a logits processor that changes nothing, because llama_cpp hands processors to the code that
    generates. `TokenRun` fills it after every step. llama_cpp's own loop calls it.
    """

    def __init__(self, n_top: int) -> None:
        """Make a recorder that keeps `n_top` alternatives for each token."""
        self.n_top = n_top
        self.taken: list[TokenLogprob] = []
        """The log probabilities of the tokens that were handed out."""
        self._ahead: deque[tuple[float, list[tuple[int, float]]]] = deque()
        self._row: Float32Array | None = None

    def __call__(
        self, _input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        """Keep the scores of the next token."""
        self._row = np.array(scores, np.float32)
        return scores

    def begin(self) -> None:
        """Begin a generation; drop the tokens that an interrupted one did not hand out."""
        self._ahead.clear()
        self._row = None

    def note(self, sequence: LoopSequence) -> None:
        """Record the tokens of the sequence's last step."""
        chosen, ids, top = sequence.probabilities(self.n_top)
        alternatives = [
            list(zip(*both, strict=True)) for both in zip(ids.tolist(), top.tolist(), strict=True)
        ]
        self._ahead.extend(zip(chosen.tolist(), alternatives, strict=True))

    def take(self, token: int) -> None:
        """Record that `token` is handed out next."""
        if self._row is not None:
            logits = self._row.astype(np.float64)
            logarithms = logits - np.logaddexp.reduce(logits)
            best = np.argsort(-logits, kind="stable")[: self.n_top]
            self._row = None
            self._ahead.append((float(logarithms[token]), [(int(i), float(logarithms[i])) for i in best]))
        self.taken.append(TokenLogprob(token, *self._ahead.popleft()))


class CompletionLogprobs(dict[str, Any]):
    """Log probabilities in the format of OpenAI's completions; `content` has the format of its chats."""

    content: list[dict[str, Any]]


def chat_logprobs(report: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a completion's log probabilities in the format of a chat, or None if it has none."""
    if report is None:
        return None
    if isinstance(report, CompletionLogprobs):
        return {"content": report.content, "refusal": None}
    rows = zip(report["tokens"], report["token_logprobs"], report["top_logprobs"], strict=True)
    content = [
        {
            **_entry(token.encode(), logprob),
            "top_logprobs": [_entry(other.encode(), value) for other, value in (top or {}).items()],
        }
        for token, logprob, top in rows
    ]
    return {"content": content, "refusal": None}


def n_alternatives(logprobs: int, keywords: Mapping[str, Any]) -> int:
    """Return the number of alternatives that a completion asks for.

    `keywords` are its other arguments. Raise InputError for a negative number and for `echo`.
    """
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
    """Yield the parts of a completion with the log probabilities of the tokens that begin in their text.

    A completion that is not streamed is one part. `recorded` holds the log probabilities, and `asked` the
    arguments of `create_completion`.
    """
    reporter = _Reporter(llama, recorded, asked)
    with contextlib.closing(made):
        for part in made:
            choice = part["choices"][0]
            found = reporter.of(choice["text"], is_end=choice["finish_reason"] is not None)
            if found["tokens"] or not asked.get("stream"):
                choice["logprobs"] = found
            yield part


class _Place(NamedTuple):
    """The place at which a token begins: the numbers of bytes and characters of the answer before it."""

    byte: int
    character: int


class _Reporter:
    """The assignment of tokens to the parts of a completion."""

    def __init__(self, llama: Any, recorded: Logprobs, asked: Mapping[str, Any]) -> None:
        self._llama, self._vocab, self._recorded = llama, llama._model.vocab, recorded
        prompt, stop = asked.get("prompt", ""), asked.get("stop") or []
        text = prompt
        if not isinstance(prompt, str):
            read = [each for each in prompt if each >= 0]  # The others stand for images.
            text = llama.detokenize(read).decode("utf-8", "ignore")
        self._offset = len(text)
        self._stops = [each.encode() for each in ([stop] if isinstance(stop, str) else stop)]
        # llama_cpp puts the beginning token before an answer to an empty prompt, and drops a space after it.
        self._tokens: list[int] = [] if len(prompt) else [llama.token_bos()]
        self._n_seen = self._n_reported = 0
        self._end = self._measured()
        self._waiting: deque[tuple[_Place, TokenLogprob]] = deque()

    def of(self, text: str, *, is_end: bool) -> CompletionLogprobs:
        """Return the log probabilities of the next part, which has this text; `is_end` marks the last."""
        self._n_reported += len(text)
        self._look()
        limit = self._stopped_at() if is_end else None
        found = []
        while self._waiting:
            place = self._waiting[0][0]
            if is_end:
                if limit is not None and place.byte >= limit:
                    break
            elif place.character >= self._n_reported:
                break
            found.append(self._waiting.popleft())
        return self._form(found)

    def _look(self) -> None:
        """Take in the tokens that were handed out since the last call."""
        for each in self._recorded.taken[self._n_seen :]:
            self._n_seen += 1
            if not api.llama_vocab_is_eog(self._vocab, each.token):  # An end-of-generation token has no text.
                self._waiting.append((self._end, each))
                self._tokens.append(each.token)
                self._end = self._measured()

    def _measured(self) -> _Place:
        text = self._llama.detokenize(self._tokens)
        return _Place(len(text), len(text.decode("utf-8", "ignore")))

    def _stopped_at(self) -> int | None:
        """Return the byte at which a stop text ended the answer, or None if none did."""
        text = self._llama.detokenize(self._tokens)
        return next((text.index(stop) for stop in self._stops if stop in text), None)

    def _form(self, found: Sequence[tuple[_Place, TokenLogprob]]) -> CompletionLogprobs:
        report = CompletionLogprobs(tokens=[], text_offset=[], token_logprobs=[], top_logprobs=[])
        report.content = []
        for place, (token, logprob, top) in found:
            own = _entry(self._piece(token), logprob)
            others = [_entry(self._piece(other), value) for other, value in top]
            report.content.append({**own, "top_logprobs": others})
            report["tokens"].append(own["token"])
            report["text_offset"].append(self._offset + place.character)
            report["token_logprobs"].append(own["logprob"])
            by_text: dict[str, float] = {}
            for entry in others:
                by_text.setdefault(entry["token"], entry["logprob"])
            by_text[own["token"]] = own["logprob"]
            report["top_logprobs"].append(by_text)
        return report

    def _piece(self, token: int) -> bytes:
        return _core.token_piece(self._vocab, token, special=True)


def _entry(piece: bytes, logprob: float | None) -> dict[str, Any]:
    r"""Return a token's entry in OpenAI's format.

    Bytes that are not text (a part of a character) are written as OpenAI does: \xe2\x82.
    """
    value = logprob if logprob is None else float(logprob) if logprob >= IMPOSSIBLE else IMPOSSIBLE
    return {"token": piece.decode("utf-8", "backslashreplace"), "bytes": list(piece), "logprob": value}
