"""What a state machine of conversations asks of a door, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tools.models.projector import png

Tokens = tuple[int, ...]
"""Tokens of a prompt. Those from 0 to 255 are bytes, and -1 - k stands for the image k."""
IMAGES = (png(64, 96, 1), png(80, 48, 2), png(64, 64, 3))
MARKER = "<__media__>"
ASCII = range(0x20, 0x7F)
"""The bytes of which answers consist (`setups.change`), so that a text and its tokens tell the same."""
END = 256 + 12
"""The token that ends a text: the first behind the bytes and the merges of tools/models/tokenizer.py."""
NO_NUMBERS = "no numbers"
"""The reason of an answer that ended because its logits are no finite numbers, where that is an error."""
OVERFLOW = 0xFF
"""A token whose embedding is infinite, so that all that follows it is no number."""


@dataclass(frozen=True)
class Request:
    """One question. Two equal ones have equal answers."""

    tokens: Tokens
    n: int = 8
    """The most tokens of the answer."""
    stop: tuple[str, ...] = ()
    way: str = "text"
    """One of the door's `ways`. "text" is the ordinary one, and "logprobs" asks for log probabilities too.
    So does "processor", with a logits processor that changes nothing. "eval" uses the low-level functions."""

    @property
    def sees(self) -> bool:
        return min(self.tokens) < 0

    @property
    def text(self) -> str:
        """The prompt as a text with a marker for each image."""
        return "".join(chr(token) if token >= 0 else MARKER for token in self.tokens)

    @property
    def images(self) -> list[bytes]:
        return [IMAGES[-1 - token] for token in self.tokens if token < 0]


@dataclass(frozen=True)
class Answer:
    """What was said, why it ended, and log probabilities, if asked for."""

    text: str
    reason: str
    top: tuple[tuple[float, ...], ...] = ()
    """For each token, the log probabilities of the most probable ones at its place, the largest first."""

    def distance(self, other: Answer) -> float:
        """Return the largest difference of log probabilities, infinity if anything else differs."""
        if (self.text, self.reason, len(self.top)) != (other.text, other.reason, len(other.top)):
            return float("inf")
        ours, theirs = np.array(self.top), np.array(other.top)
        same_places = np.isfinite(ours) == np.isfinite(theirs)  # What follows an overflow is no number.
        apart = np.nan_to_num(np.abs(ours - theirs))
        return float(np.where(same_places, apart, np.inf).max(initial=0))


@dataclass(frozen=True)
class Setup:
    """The models and the options of a door, by the names of `EngineConfig`."""

    name: str
    target: Path
    options: dict[str, Any]
    sees: bool = False


class Door(Protocol):
    """A door to a model, and its state."""

    ways: Sequence[str]
    actions: Sequence[str]
    """What `act` knows."""
    n_clients: int
    """The number of requests that may be asked at the same time."""
    shares_overflows: bool
    """True if a text whose logits are no numbers ends all requests that run."""

    def answer(self, request: Request) -> Answer: ...

    def leave(self, request: Request, n_parts: int) -> str:
        """Return the beginning of an answer whose reader leaves after so many parts."""

    def go_on(self, more: Tokens, n: int) -> tuple[Request, Answer]:
        """Evaluate tokens behind those that are held. Return the request that equals all this, and its
        answer."""

    def act(self, action: str, number: int) -> None: ...

    def close(self) -> None: ...
