"""The beginnings of prompts, and where they were read: so a conversation finds its cache."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)

FIELDS = ("system", "instructions", "tools", "prompt", "messages", "input")
"""The fields of a request that make its prompt, in the order in which chat templates use them."""
BLOCK = 64
"""Characters of a block. A beginning is known in whole blocks."""
MOST_BLOCKS = 200_000
"""Blocks that are remembered; the oldest are forgotten. They take about 30 MB."""


def prompt_text(body: bytes) -> str:
    """Return the text of a request's prompt.

    The text of a conversation begins with the texts of its earlier requests. A body that is no JSON object
    has the text "": the engine refuses such a request.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(request, Mapping):
        return ""
    # The closing bracket of a list is dropped, because the next request continues the list.
    return "".join(_text(request[name]).rstrip("]") for name in FIELDS if request.get(name))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Prefixes(Generic[Place]):
    """Remembers which place read which beginning last."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._places: OrderedDict[int, Place] = OrderedDict()

    def add(self, text: str, place: Place) -> None:
        """Remember that a place has read the text."""
        for key in _keys(text):
            self._places[key] = place
            self._places.move_to_end(key)
        while len(self._places) > self._most:
            self._places.popitem(last=False)

    def find(self, text: str, places: Collection[Place]) -> Place | None:
        """Return which of the places read the longest beginning of the text; None if none of them did."""
        found = None
        for key in _keys(text):
            if key not in self._places:
                break
            if self._places[key] in places:
                found = self._places[key]
        return found


def _keys(text: str) -> Iterator[int]:
    """Yield a key for each beginning of whole blocks, the shortest first."""
    key = 0
    for end in range(BLOCK, len(text) + 1, BLOCK):
        key = hash((key, text[end - BLOCK : end]))
        yield key
