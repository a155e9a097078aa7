"""A chat's answer in pieces of blocks: reasoning, text and calls. Other interfaces send them as events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spac.errors import SpacError
from spac.serve.refusal import GONE, Refusal, refusal_of

Event = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A further piece of one block."""

    kind: str
    """The block's kind: "reasoning", "text" or "call"."""
    text: str
    """The piece's text. For a call, it is JSON text of the arguments."""
    index: int = 0
    """The index of a call."""
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class End:
    """The end of an answer."""

    reason: str
    """The reason in the words of a chat's `finish_reason`."""
    stop: str | None
    """The stop sequence that was met, or None."""


def pieces_of(message: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a chat's message, or of a delta of it."""
    for kind, key in (("reasoning", "reasoning_content"), ("text", "content")):
        if message.get(key):
            yield Piece(kind, message[key])
    for at, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        name, arguments = function.get("name", ""), function.get("arguments", "")
        yield Piece("call", arguments, call.get("index", at), call.get("id", ""), name)


def end_of(choice: Mapping[str, Any]) -> End:
    """Return the end of an answer from the choice of a chat that ended."""
    return End(choice["finish_reason"], choice.get("stop_reason"))


def figures_of(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field `timings` of an answer or a chunk, as an object; without it, the object is empty."""
    return {"timings": made["timings"]} if "timings" in made else {}


def own_id(made: Mapping[str, Any]) -> str:
    """Return the part of an answer's id that all ids made for it contain."""
    return str(made["id"]).removeprefix("chatcmpl-")


class Translator(ABC):
    """Turns a streamed chat into another interface's events.

    One block is open at a time, and each is closed.
    """

    def __init__(self) -> None:
        self.begun = False
        """True once an event was made."""
        self._open: tuple[str, int] | None = None
        self._n_calls = 0
        self._end: End | None = None
        self._usage: Mapping[str, Any] = {}
        self._figures: dict[str, Any] = {}  # the field `timings`, once a chunk has it

    def push(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events of a chunk of the chat."""
        self._usage = chunk.get("usage") or self._usage
        self._figures = figures_of(chunk) or self._figures
        if not self.begun:
            self.begun = True
            yield from self._begin(chunk, self._usage)
        for choice in chunk["choices"]:
            for piece in pieces_of(choice["delta"]):
                yield from self._piece(piece)
            if choice["finish_reason"] is not None:
                self._end = end_of(choice)

    def finish(self) -> Iterator[Event]:
        """Yield the events after the last chunk; raise SpacError if the answer has no end."""
        if self._end is None:
            raise SpacError("the answer broke off")
        yield from self._shut(self._end)
        yield from self._finish(self._end, self._usage)

    def _piece(self, piece: Piece) -> Iterator[Event]:
        key = (piece.kind, piece.index)
        if key != self._open:
            if piece.kind == "call":
                if piece.index != self._n_calls:
                    raise SpacError("a call went on after the next one had begun")
                self._n_calls += 1
            yield from self._shut(None)
            self._open = key
            yield from self._start(piece)
        if piece.text:
            yield from self._more(piece)

    def _shut(self, end: End | None) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield from self._stop(end)

    @abstractmethod
    def _begin(self, made: Mapping[str, Any], usage: Mapping[str, Any]) -> Iterable[Event]:
        """Return the events for the beginning of the answer."""

    @abstractmethod
    def _start(self, piece: Piece) -> Iterable[Event]:
        """Return the events for the beginning of a block; `_more` adds the piece's text."""

    @abstractmethod
    def _more(self, piece: Piece) -> Iterable[Event]:
        """Return the events for more of the open block."""

    @abstractmethod
    def _stop(self, end: End | None) -> Iterable[Event]:
        """Return the events for the end of the block; `end` is given if the answer ends with it."""

    @abstractmethod
    def _finish(self, end: End, usage: Mapping[str, Any]) -> Iterable[Event]:
        """Return the events for the end of the answer."""

    @abstractmethod
    def fail(self, refusal: Refusal) -> Iterable[Event]:
        """Return the events that report a fault in place of the rest."""


def events_of(translator: Translator, chunks: Iterable[Mapping[str, Any]]) -> Generator[bytes, None, None]:
    """Yield the encoded events of a chat's chunks.

    A fault before the first event is raised. A later fault becomes an event, unless the client has left.
    """
    try:
        for chunk in chunks:
            yield from map(encoded, translator.push(chunk))
        yield from map(encoded, translator.finish())
    except Exception as error:
        refusal = refusal_of(error)
        if refusal.status == GONE or not translator.begun:
            raise
        yield from map(encoded, translator.fail(refusal))


def encoded(event: Event) -> bytes:
    """Return the event as the bytes that are sent."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
