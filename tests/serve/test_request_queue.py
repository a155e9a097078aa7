"""The request queue keeps order and limit, and requests may leave it, in any sequence of events."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spac.serve.request_queue import Full, RequestQueue


def test_nobody_may_wait():
    async def main():
        queue = RequestQueue(0)
        await queue.enter()
        with pytest.raises(Full):
            await queue.enter()
        queue.leave()
        await queue.enter()

    asyncio.run(main())


def test_the_time_to_come_back_follows_what_requests_take(monkeypatch):
    now = 0.0
    monkeypatch.setattr("spac.serve.request_queue.time.monotonic", lambda: now)

    async def main():
        nonlocal now
        queue = RequestQueue(0)
        for _ in range(30):
            await queue.enter()
            now += 20
            queue.leave()
        return queue.retry_after_s()

    assert asyncio.run(main()) == 20


@example(["come", "come", "come", "serve and cancel"], 1)
@given(
    st.lists(st.sampled_from(["come", "serve", "cancel first", "cancel last", "serve and cancel"])),
    st.integers(1, 3),
)
def test_no_more_than_its_places_and_nobody_is_lost(actions, places):
    async def main():
        queue, limit = RequestQueue(3, places), 3
        tasks: list[asyncio.Task] = []  # in the order of arrival; the first are served

        async def settle():
            for _ in range(5):
                await asyncio.sleep(0)

        for action in actions:
            if action == "come":
                task = asyncio.create_task(queue.enter())
                await settle()
                if len(tasks) == limit + places:
                    assert isinstance(task.exception(), Full)
                else:
                    tasks.append(task)
            elif action.startswith("cancel") and len(tasks) > places:
                gone = tasks.pop(places if action == "cancel first" else -1)
                gone.cancel()
            elif action.startswith("serve") and tasks:
                tasks.pop(0)
                queue.leave()
                if action == "serve and cancel" and len(tasks) >= places:  # the turn comes at the same moment
                    tasks.pop(places - 1).cancel()
            await settle()
            assert queue.n_served == min(len(tasks), places)
            assert queue.n_waiting == max(0, len(tasks) - places)
            assert [task.done() for task in tasks] == [at < places for at in range(len(tasks))]
        for task in tasks[places:]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
