"""A state machine that asks a door in any order, and compares the answers with those of doors begun anew."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, precondition, rule

from spac.errors import SpacError
from spac.llama_cpp_python.logprobs import IMPOSSIBLE
from tests.conversations.door import ASCII, IMAGES, NO_NUMBERS, OVERFLOW, Answer, Door, Request, Setup, Tokens
from tests.conversations.setups import CONTEXT

Make = Callable[[Setup], Door]

TOLERANCE = 1e-4
"""The largest difference of log probabilities that the shapes of batches may make."""
GRAPHS = (1, 5, 12)
"""Sizes of graphs with which an answer is made again, to see if rounding decides it."""
IMAGE_TOKENS = 40
"""The most tokens of an image, with those around it."""
CHAT_TOKENS = 50
"""The most tokens that the format of a chat adds."""
LENGTHS = (1, 2, 3, 9, 16, 17, 31, 32, 33, 40, 64, 65, 66, 97, 130)
LENGTH, LIMIT = st.sampled_from(LENGTHS), st.sampled_from((1, 1, 2, 5, 12))
WAY, PLACE = st.integers(0, 9), st.integers(0, 200)


def some_text(n: int, seed: int) -> Tokens:
    """Return `n` tokens of ASCII. Shorter ones begin longer ones of the same seed."""
    return tuple(np.random.default_rng(seed).integers(ASCII.start, ASCII.stop, 256)[:n].tolist())


class Fresh:
    """The answers of doors that have not answered anything else. Each is made once."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._kept: dict[Any, Answer] = {}
        self.n_made = 0

    def answer(self, setup: Setup, request: Request) -> Answer:
        key = (setup.name, request)
        if key not in self._kept:
            self.n_made += 1
            with contextlib.closing(self._make(setup)) as door:
                self._kept[key] = door.answer(request)
        return self._kept[key]

    def is_close(self, setup: Setup, request: Request) -> bool:
        """Return True if rounding decides the answer: other sizes of graphs change it in a fresh door too."""
        expected = self.answer(setup, request)
        for size in GRAPHS:
            options = {**setup.options, "ubatch": size}
            other = replace(setup, name=f"{setup.name}, graphs of {size}", options=options)
            with contextlib.suppress(SpacError):  # An image may need a larger graph.
                if self.answer(other, request).distance(expected) > TOLERANCE:
                    return True
        return False

    def is_finite(self, setup: Setup, request: Request) -> bool:
        """Return False if the model computes numbers that are not finite, so that an error is right."""
        answer = self.answer(setup, replace(request, way="logprobs"))
        least = min((each for row in answer.top for each in row), default=0)
        return answer.reason != NO_NUMBERS and least > IMPOSSIBLE


class Enough(KeyboardInterrupt):
    """The end of a run, inside an example. Hypothesis lets it pass as it does an interrupt, or it raises
    Flaky, because an equal beginning went on before."""


@dataclass
class Tally:
    """The counts of a run over several examples, and its limits."""

    most_rules: float = float("inf")
    until: float = float("inf")
    """The time of `time.monotonic` at which the run ends."""

    n_rules: int = 0
    n_answers: int = 0
    close: list[str] = field(default_factory=list)
    """The answers that differed, and that rounding decides."""
    differences: list[str] = field(default_factory=list)
    """The steps of each example that ended with a difference."""
    is_over: bool = False

    def count(self) -> None:
        """Count a rule, or raise Enough."""
        if self.n_rules >= self.most_rules or time.monotonic() > self.until:
            self.is_over = True
            raise Enough
        self.n_rules += 1


class Conversations(RuleBasedStateMachine):
    """Conversations at one door. A subclass names the door, its setups, and where the counts go."""

    make: Make
    setups: Sequence[Setup]
    fresh: Fresh
    tally: Tally
    stops = True
    """False if a difference is only counted, and ends the example."""

    texts = Bundle("texts")

    def __init__(self) -> None:
        super().__init__()
        self.door: Door | None = None
        self.steps: list[str] = []
        self.over = False
        self.last: Tokens = ()

    def teardown(self) -> None:
        if self.door is not None:
            self.door.close()

    @initialize(number=st.integers(0, 999))
    def open(self, number: int) -> None:
        self.setup = self.setups[number % len(self.setups)]
        self.steps.append(f"open {self.setup.name!r}")
        self.door = self.make(self.setup)

    # Texts

    @rule(target=texts, n=LENGTH, seed=st.integers(0, 3))
    def begin(self, n: int, seed: int) -> Tokens:
        return some_text(n, seed)

    @rule(target=texts, text=texts, n=LENGTH, seed=st.integers(4, 6))
    def append(self, text: Tokens, n: int, seed: int) -> Tokens:
        return (*text, *some_text(n, seed))

    @rule(target=texts, text=texts, at=PLACE, n=st.integers(0, 3), cut=st.integers(0, 3))
    def edit(self, text: Tokens, at: int, n: int, cut: int) -> Tokens:
        at %= len(text)
        return (*text[:at], *some_text(n, 7), *text[at + cut :]) or text

    @rule(target=texts, text=texts, n=st.integers(1, 200))
    def shorten(self, text: Tokens, n: int) -> Tokens:
        return text[: 1 + n % len(text)]

    @precondition(lambda self: self.last)
    @rule(target=texts, text=texts, more=st.integers(-2, 2), shared=PLACE, seed=st.integers(8, 9))
    def as_long_as_the_last(self, text: Tokens, more: int, shared: int, seed: int) -> Tokens:
        """Return another text of almost the same length as what was read and said last."""
        shared %= len(self.last) + 1
        return (*self.last[:shared], *some_text(256, seed))[: max(1, len(self.last) + more)]

    @precondition(lambda self: self.door is not None and self.setup.sees)
    @rule(target=texts, text=texts, image=st.integers(1, len(IMAGES)), at=PLACE)
    def show(self, text: Tokens, image: int, at: int) -> Tokens:
        at %= len(text) + 1
        return (*text[:at], -image, *text[at:])

    # Questions

    @rule(target=texts, text=texts, n=LIMIT, way=WAY)
    def ask(self, text: Tokens, n: int, way: int) -> Any:
        return self._ask(self._request(text, n, way))

    @rule(target=texts, n=LIMIT, length=LENGTH, seed=st.integers(0, 3))
    def ask_anew(self, n: int, length: int, seed: int) -> Any:
        return self._ask(self._request(some_text(length, seed), n))

    @rule(target=texts, text=texts, n=LIMIT, times=st.integers(2, 3), way=WAY)
    def regenerate(self, text: Tokens, n: int, times: int, way: int) -> Any:
        request = self._request(text, n, way)
        return [self._ask(request) for _ in range(times)][-1]

    @rule(target=texts, text=texts, n=LIMIT, way=WAY, more=st.integers(-1, 1), shared=PLACE)
    def ask_in_turns(self, text: Tokens, n: int, way: int, more: int, shared: int) -> Any:
        """Ask a text, then one of nearly the length of all that was said, then the first again."""
        request = self._request(text, n, way)
        self._ask(request)
        if request is not None:
            self._ask(self._request(self.as_long_as_the_last(text, more, shared, 8), n, way))
        return self._ask(request)

    @rule(target=texts, text=texts, n=LENGTH, at=PLACE, way=st.integers(0, 3))
    def come_back(self, text: Tokens, n: int, at: int, way: int) -> Any:
        """Ask a long text that goes on after another one, then one that shares its beginning, in any way."""
        text = (*text, *some_text(max(0, 130 - len(text)), 10))
        for each in (text, some_text(n, 11), (*text, *some_text(3, 12))):
            self._ask(self._request(each, 1))
        return self._ask(self._request((*text[:at], *some_text(3, 13)), 5, way))

    @rule(target=texts, text=texts, at=st.integers(0, 12), n=st.integers(1, 2), way=WAY)
    def ask_with_stop(self, text: Tokens, at: int, n: int, way: int) -> Any:
        request = self._request(text, 12, way)
        said = self.fresh.answer(self.setup, request).text if request is not None else ""
        stop = said[at : at + n]
        return self._ask(replace(request, stop=(stop,)) if stop and request.way != "eval" else request)

    @rule(text=texts, n=st.sampled_from((5, 12, 60)), n_parts=st.integers(0, 6))
    def leave(self, text: Tokens, n: int, n_parts: int) -> None:
        request = self._request(text, n)
        if self._counts(f"leave {request} after {n_parts} parts") and request is not None:
            begun = self.door.leave(request, n_parts)
            whole = self.fresh.answer(self.setup, request)
            if whole.reason != NO_NUMBERS and not whole.text.startswith(begun):  # such an answer has no text
                self._differs(request, begun)

    @precondition(lambda self: self.door is not None and self.door.n_clients > 1)
    @rule(target=texts, some=st.lists(st.tuples(texts, LIMIT, WAY), min_size=2, max_size=6))
    def ask_together(self, some: list[tuple[Tokens, int, int]]) -> Any:
        requests = [each for each in (self._request(*one) for one in some) if each is not None]
        if self.door.shares_overflows:
            requests = [each for each in requests if self.fresh.is_finite(self.setup, each)]
        if not self._counts(f"together {requests}") or not requests:
            return multiple()
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(self.door.answer, requests))
        for request, answer in zip(requests, answers, strict=True):
            self._compare(request, answer)
        return multiple(*(self._whole(*both) for both in zip(requests, answers, strict=True)))

    # What else happens to a door

    @precondition(lambda self: self.door is not None and "eval" in self.door.ways)
    @rule(target=texts, n=st.sampled_from(LENGTHS[:8]), seed=st.integers(0, 3), n_made=LIMIT)
    def go_on(self, n: int, seed: int, n_made: int) -> Any:
        more = some_text(n, seed)
        if not self._counts(f"go on with {more}, {n_made} tokens"):
            return multiple()
        request, answer = self.door.go_on(more, n_made)
        self._compare(request, answer)
        return self._whole(request, answer)

    @precondition(lambda self: self.door is not None and self.door.actions)
    @rule(action=st.integers(0, 9), number=st.integers(0, 9))
    def act(self, action: int, number: int) -> None:
        name = self.door.actions[action % len(self.door.actions)]
        if self._counts(f"{name} {number}"):
            self.door.act(name, number)

    @rule(text=texts, at=PLACE, way=WAY)
    def overflow(self, text: Tokens, at: int, way: int) -> None:
        """Ask what has no answer, because its logits are no numbers. Nothing of it may stay."""
        at %= len(text) + 1
        request = self._request((*text[:at], OVERFLOW, *text[at:]), 2, way)
        if request is not None and not request.sees and self._counts(f"{request}, which overflows"):
            with contextlib.suppress(SpacError, ValueError):
                self.door.answer(request)

    # Helpers

    def _request(self, text: Tokens, n: int, way: int = 0) -> Request | None:
        """Return a request, or None if the context has no place for it."""
        n_images = sum(token < 0 for token in text)
        if len(text) + n_images * IMAGE_TOKENS + n > CONTEXT - CHAT_TOKENS * bool(n_images) - 1:
            return None
        ways = self.door.ways
        way = way if way < (2 if n_images else len(ways)) else 0  # Images go with text and log probabilities.
        return Request(text, n, way=ways[way % len(ways)])

    def _ask(self, request: Request | None) -> Any:
        if not self._counts(f"ask {request}") or request is None:
            return multiple()
        answer = self.door.answer(request)
        self._compare(request, answer)
        return self._whole(request, answer)

    def _whole(self, request: Request, answer: Answer) -> Tokens:
        self.last = (*request.tokens, *answer.text.encode("latin-1", "replace"))
        return self.last

    def _counts(self, step: str) -> bool:
        """Count a step that asks something of the door. Return False if the example is over."""
        if not self.over:
            self.tally.count()
            self.steps.append(step)
        return not self.over

    def _compare(self, request: Request, answer: Answer) -> None:
        self.tally.n_answers += 1
        if answer.distance(self.fresh.answer(self.setup, request)) > TOLERANCE:
            self._differs(request, answer)

    def _differs(self, request: Request, answer: Answer | str) -> None:
        expected = self.fresh.answer(self.setup, request)
        reason = answer.reason if isinstance(answer, Answer) else ""
        if reason == NO_NUMBERS and not self.fresh.is_finite(self.setup, request):
            return
        if self.fresh.is_close(self.setup, request):
            self.tally.close.append(f"{self.setup.name}: {request} said {answer}, anew {expected}")
            return
        told = "\n".join((*self.steps, f"said {answer}", f"but begun anew {expected}"))
        self.over = True
        self.tally.differences.append(told)
        if self.stops:
            raise AssertionError(told)


def machine_of(
    make: Make, make_fresh: Make, setups: Sequence[Setup], *, stops: bool = True
) -> type[Conversations]:
    """Return the state machine of a door with these setups, and with counts of its own.

    `make_fresh` makes the doors begun anew.
    """
    own = {"make": staticmethod(make), "fresh": Fresh(make_fresh), "tally": Tally()}
    own |= {"setups": setups, "stops": stops}
    return type("ConversationsAtADoor", (Conversations,), own)
