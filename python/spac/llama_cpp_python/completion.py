"""The loop from tokens to the parts of a completion, with work per token that does not grow with the answer.

llama_cpp's own loop converts and searches the whole answer for each token. The parts are the same.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llama_cpp

if TYPE_CHECKING:
    from spac.llama_cpp_python.detokenizer import Detokenizer
    from spac.llama_cpp_python.llama import Llama

LEADS = ((2, 0b11000000), (3, 0b11100000), (4, 0b11110000))
"""The lengths of UTF-8 characters, and the bits of their first bytes."""
_LEAST_LEAD = 0b11000000

Part = dict[str, Any]


class GenerationAsked(Exception):  # noqa: N818  (a state, not a fault)
    """Raised by `Llama.generate` in place of a generation, with its arguments."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__("a generation was asked for")
        self.arguments = arguments


class AnswerText:
    """The text of an answer that grows, and what of it may be handed out."""

    def __init__(self, detokenizer: Detokenizer, tokens: Sequence[int], stops: Sequence[bytes]) -> None:
        """Begin with these tokens; the text ends before the first of `stops` that it has."""
        self.tokens = list(tokens)
        self._detokenizer, self._stops = detokenizer, stops
        self._drops_space = bool(tokens) and tokens[0] == detokenizer.begin
        self._text, self._n_raw, self._n_searched = bytearray(), 0, 0
        for token in tokens:
            self._add(token)
        self._n_missing = 0  # tokens to wait for, because the text ends inside of a character
        self._n_returned = 0

    @property
    def text(self) -> bytes:
        """The text of all tokens."""
        return bytes(self._text)

    def push(self, token: int) -> bool:
        """Add a token. Return False if its text is a part of a character that goes on."""
        if not self.tokens:
            self._drops_space = token == self._detokenizer.begin
        self.tokens.append(token)
        self._add(token)
        tail = self._text[-3:]
        if tail and max(tail) >= _LEAST_LEAD:
            for at, byte in enumerate(tail):
                for length, bits in LEADS:
                    if length > 3 - at and bits & byte == bits:
                        self._n_missing = length - (3 - at)
        if self._n_missing > 0:
            self._n_missing -= 1
            return False
        return True

    def stopped(self) -> bytes | None:
        """Return the text before a stop text, or None if there is none."""
        for stop in self._stops:
            # The part that was searched before may have the stop text's beginning.
            if self._text.find(stop, max(0, self._n_searched - len(stop) + 1)) >= 0:
                return bytes(self._text[: self._text.index(stop)])
        self._n_searched = len(self._text)
        return None

    def ready(self) -> Iterator[str]:
        """Yield the pieces of text that can be handed out: whole characters that begin no stop text."""
        waiting = self.tokens[self._n_returned :]
        whole = self._waiting_text(waiting)
        limit, end = len(whole) - self._n_held(whole), 0
        while waiting:
            for n in range(1, len(waiting) + 1):
                piece = self._waiting_text(waiting[:n])
                try:
                    text = piece.decode("utf-8")
                except UnicodeError:
                    continue
                break
            else:
                return
            end += len(piece)
            if end > limit:
                return
            waiting = waiting[n:]
            self._n_returned += n
            yield text

    def rest(self) -> Iterator[str]:
        """Yield the pieces of the text that `ready` held back, up to a stop text."""
        waiting = self.tokens[self._n_returned :]
        text = self._waiting_text(waiting)
        limit = min([text.index(stop) for stop in self._stops if stop in text], default=len(text))
        end = 0
        for token in waiting:
            piece = self._waiting_text([token])
            end += len(piece)
            if end >= limit:
                yield piece[: len(piece) - (end - limit)].decode("utf-8", "ignore")
                return
            yield piece.decode("utf-8", "ignore")

    def _add(self, token: int) -> None:
        piece = self._detokenizer.piece(token)
        drops = self._drops_space and not self._n_raw and piece[:1] == b" "
        self._text += piece[1:] if drops else piece
        self._n_raw += len(piece)

    def _waiting_text(self, tokens: Sequence[int]) -> bytes:
        if len(tokens) == 1 and tokens[0] != self._detokenizer.begin:
            return self._detokenizer.piece(tokens[0])
        return self._detokenizer.text(tokens)

    def _n_held(self, text: bytes) -> int:
        """Return the length of the longest end of the waiting text that begins a stop text."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop), len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return longest


@dataclass(frozen=True)
class Asked:
    """Holds the settings of a completion, by the names of llama_cpp's `create_completion`."""

    max_tokens: int
    stops: Sequence[bytes]
    stream: bool
    model: str
    n_prompt: int
    """The number of the prompt's tokens."""
    begun: Sequence[int]
    """The tokens before the answer's first one: the beginning token for an empty prompt."""
    at_end: Callable[[], bool]
    """A function that is called at the end. If it is true, the reason is "stop" and the text whole."""


def parts(llama: Llama, made: Generator[Part], keywords: Mapping[str, Any]) -> Generator[Part]:
    """Yield the parts of a completion; `made` is llama_cpp's, which is asked for its generation alone."""
    llama.captures = True
    try:
        next(made)
        raise AssertionError("no generation was asked for")
    except GenerationAsked as asked:
        arguments = asked.arguments
    finally:
        llama.captures = False
    prompt, stop, criteria = keywords["prompt"], keywords["stop"], keywords.get("stopping_criteria")
    n_prompt, n_most, n_ctx = len(arguments["tokens"]), keywords.get("max_tokens", 16), llama.n_ctx()
    if n_most is None or n_most <= 0 or n_most + n_prompt >= n_ctx:
        n_most = n_ctx - n_prompt
    asked_for = Asked(
        n_most, [each.encode() for each in stop], bool(keywords.get("stream")),
        llama.model_path if (model := keywords.get("model")) is None else model, n_prompt,
        [] if len(prompt) else [llama.token_bos()],
        lambda: criteria is not None and criteria(llama._input_ids, llama._scores[-1, :]),
    )  # fmt: skip
    given = {name: value for name, value in arguments.items() if name != "self"}
    with contextlib.closing(llama.generate(**given)) as tokens:
        yield from completion(llama, tokens, asked_for)


def completion(llama: Llama, tokens: Iterator[int], asked: Asked) -> Generator[Part]:
    """Yield the parts of a completion of these tokens."""
    answer = AnswerText(llama._text, asked.begun, asked.stops)
    vocab, head = llama._model.vocab, _head(asked)
    text, reason = b"", "length"
    for token in tokens:
        if llama_cpp.llama_vocab_is_eog(vocab, token):
            text, reason = answer.text, "stop"
            break
        if not answer.push(token):
            continue
        if (stopped := answer.stopped()) is not None:
            text, reason = stopped, "stop"
            break
        if asked.stream:
            for piece in answer.ready():
                yield {**head, "choices": [_choice(piece)]}
        if len(answer.tokens) >= asked.max_tokens:
            text, reason = answer.text, "length"
            break
    if asked.at_end():
        text, reason = answer.text, "stop"
    if asked.stream:
        for piece in answer.rest():
            yield {**head, "choices": [_choice(piece)]}
        yield {**head, "choices": [_choice("", reason)]}
        return
    n_made = len(answer.tokens)
    counts = {"prompt_tokens": asked.n_prompt, "completion_tokens": n_made}
    usage = {**counts, "total_tokens": asked.n_prompt + n_made}
    yield {**head, "choices": [_choice(text.decode("utf-8", "ignore"), reason)], "usage": usage}


def _head(asked: Asked) -> Part:
    return {
        "id": f"cmpl-{uuid.uuid4()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.model,
    }


def _choice(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
