"""Streams run on threads of their own, and the event loop takes their items."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import demo
from spac.llama_cpp_python.generation import TokenRun
from spac.llama_cpp_python.llama import Llama
from spac.serve.request_context import RequestContext
from spac.serve.stream_thread import AHEAD, StreamThread


async def read(stream: Generator[int, None, None], found: list[int], pauses: Iterable[bool] = ()) -> None:
    """Add the items of a stream to `found`; the reader pauses before it takes more where `pauses` says so."""
    context, steps = RequestContext({}), iter(pauses)
    try:
        async for items in StreamThread(stream, context).items():
            assert items
            found += items
            if next(steps, False):
                await asyncio.sleep(0.001)
    finally:
        await asyncio.to_thread(context.finish)


def counting(n: int, threads: set[int]) -> Generator[int, None, None]:
    try:
        for number in range(n):
            threads.add(threading.get_ident())
            yield number
    finally:
        threads.add(threading.get_ident())


@given(st.integers(0, 3 * AHEAD), st.lists(st.booleans(), max_size=20))
def test_all_items_come_in_order_from_one_thread(n: int, pauses: list[bool]) -> None:
    threads: set[int] = set()
    found: list[int] = []
    asyncio.run(read(counting(n, threads), found, pauses))
    assert found == list(range(n))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_comes_after_the_items() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no more")

    found: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        asyncio.run(read(failing(), found))
    assert found == [1]


def test_a_stream_waits_for_its_reader_and_ends_with_its_request() -> None:
    """Without a reader, as many items are made as fit; the end closes the stream on its own thread."""
    made: list[int] = []
    closed: list[str] = []
    full = threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            while True:
                made.append(len(made))
                if len(made) == AHEAD + 1:
                    full.set()
                yield made[-1]
        finally:
            closed.append(threading.current_thread().name)

    async def run() -> None:
        context = RequestContext({})
        StreamThread(endless(), context)
        assert await asyncio.to_thread(full.wait, 60)
        await asyncio.to_thread(context.finish)
        assert context.cancelled

    asyncio.run(run())
    assert len(made) == AHEAD + 1
    assert closed == ["spac-stream"]


def test_an_item_is_sent_before_the_next_step() -> None:
    """A token at hand may be no item, because it ends in the middle of a character."""
    sent = threading.Event()

    async def take() -> None:
        context = RequestContext({})
        context.run = cast(TokenRun, SimpleNamespace(n_fresh=1))

        def stream() -> Generator[int, None, None]:
            yield 1
            assert context.wake is not None
            context.wake()
            assert sent.wait(60)

        async for items in StreamThread(stream(), context).items():
            assert items == [1]
            sent.set()
        await asyncio.to_thread(context.finish)

    asyncio.run(take())
    assert sent.is_set()


def test_a_run_calls_back_before_each_step() -> None:
    calls: list[int] = []

    def follow(run: TokenRun) -> None:
        run.before_step = lambda: calls.append(run.n_fresh)

    options = {"n_ctx": 256, "n_threads": 1, "verbose": False, "deterministic": True}
    with closing(
        Llama(str(demo.TARGET), draft=demo.DRAFT, draft_length=4, device="simulated", **options)
    ) as llm:
        llm.on_run = follow
        llm("def fibonacci(n):", max_tokens=12, temperature=0.0)
        steps = llm.stats.steps
    assert len(calls) == steps
    assert not any(calls), "no token was at hand"


def test_items_that_are_at_hand_come_together() -> None:
    """The event loop is woken for the last of them."""
    run = SimpleNamespace(n_fresh=0)
    seen: list[list[int]] = []

    def groups() -> Generator[int, None, None]:
        for size in (1, 5, 3):
            for left in reversed(range(size)):
                run.n_fresh = left
                yield size
            while sum(map(len, seen)) < {1: 1, 5: 6, 3: 9}[size]:
                time.sleep(0.001)

    async def take() -> None:
        context = RequestContext({})
        context.run = cast(TokenRun, run)
        async for items in StreamThread(groups(), context).items():
            seen.append(items)
        await asyncio.to_thread(context.finish)

    asyncio.run(asyncio.wait_for(take(), 60))
    assert seen == [[1], [5] * 5, [3] * 3]
