"""A session that is stopped at any point loses nothing and goes on where it was."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spac import _core
from spac.errors import Cancelled, InputError
from tests.session.lab import GREEDY, Lab, disturbed, generate, persist, prompt, take

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

N_NEW = 40


@pytest.fixture
def expected(lab: Lab, target: Path) -> list[int]:
    """Return the undisturbed text after prompt(30)."""
    return generate(speculative(lab, target), prompt(30), N_NEW)


def speculative(lab: Lab, target: Path, **context: int) -> _core.Session:
    return lab.session(lab.context(target, **context), lab.context(target, **context), draft_max=4, **GREEDY)


def test_cancel_between_calls_stops_the_next_one(lab: Lab, target: Path, expected: list[int]) -> None:
    session = speculative(lab, target)
    session.cancel()
    with pytest.raises(Cancelled):
        session.prefill(prompt(30))
    session.prefill(prompt(30))
    tokens = take(session, 10)[:10]
    session.prefill([*prompt(30).tolist(), *tokens])
    session.cancel()
    with pytest.raises(Cancelled):
        session.step()
    assert tokens + take(session, N_NEW - 10) == expected


def test_cancel_between_calls_leaves_others_alone(lab: Lab, target: Path) -> None:
    """llama.cpp's own call on the session's context is not stopped by a cancel that waits for the session."""
    context = lab.context(target)
    session = lab.session(context, lab.context(target), draft_max=4, **GREEDY)
    session.cancel()
    token = (ctypes.c_int32 * 1)(7)
    assert api.llama_decode(context, api.llama_batch_get_one(token, 1)) == 0
    with pytest.raises(Cancelled):
        session.prefill(prompt(5))


def test_reset_takes_a_cancel_back(lab: Lab, target: Path) -> None:
    session = speculative(lab, target)
    session.cancel()
    session.reset()
    session.prefill(prompt(5))


def test_cancel_from_another_thread(lab: Lab, target: Path, expected: list[int]) -> None:
    """Another thread cancels again and again at any moment. The text is the undisturbed one."""
    session = speculative(lab, target)
    with disturbed(session):
        tokens, n_cancelled = persist(session, prompt(30), N_NEW)
    assert n_cancelled > 0
    assert tokens == expected


def test_a_running_prefill_is_cancelled_and_goes_on(lab: Lab, target: Path) -> None:
    long = prompt(2000)
    whole = lab.session(lab.context(target, n_ctx=2048), **GREEDY)
    expected = generate(whole, long, 10)
    session = lab.session(lab.context(target, n_ctx=2048), **GREEDY)
    pieces: list[int] = []

    def progress(n_done: int, n_total: int) -> None:
        assert n_total == 1999
        pieces.append(n_done)
        if len(pieces) == 3:
            session.cancel()

    with pytest.raises(Cancelled):
        session.prefill(long, progress)
    assert session.n_past == pieces[-1] == 3 * 64
    assert take(session, 10) == expected, "a step evaluates the rest of the prompt first"


def test_an_exception_of_progress_leaves_prefill(lab: Lab, target: Path) -> None:
    session = speculative(lab, target)

    def progress(n_done: int, n_total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        session.prefill(prompt(200), progress)
    session.prefill(prompt(200))
    assert session.n_past == 199


@pytest.mark.parametrize("event", ["draft_token", "draft_end"])
def test_an_exception_before_verification_changes_nothing(
    lab: Lab, target: Path, expected: list[int], event: str
) -> None:
    session = speculative(lab, target)
    session.prefill(prompt(30))
    tokens = take(session, 10)
    before = session.tokens.tolist()

    def fail(_event: object) -> None:
        raise KeyError(event)

    session.on(event, fail)
    for _ in range(3):
        with pytest.raises(KeyError):
            session.step()
        assert session.tokens.tolist() == before
    session.on(event, None)
    assert tokens + take(session, N_NEW - 10) == expected


def test_an_exception_after_verification_loses_no_token(lab: Lab, target: Path, expected: list[int]) -> None:
    session = speculative(lab, target)
    session.prefill(prompt(30))

    def fail(step: _core.Step) -> None:
        raise KeyError(len(step.tokens))

    session.on("verify_end", fail)
    tokens: list[int] = []
    while len(tokens) < N_NEW:
        with pytest.raises(KeyError):
            session.step()
        tokens += session.last_step.tokens.tolist()
    assert tokens[:N_NEW] == expected


def test_events_come_in_order_and_say_the_same(lab: Lab, target: Path, other: Path) -> None:
    session = lab.session(lab.context(target), lab.context(other), draft_max=5, temp=1.0, seed=3)
    seen: list[object] = []
    for event in ("draft_token", "draft_end", "verify_end"):
        session.on(event, seen.append)
    session.prefill(prompt(30))
    for _ in range(10):
        seen.clear()
        step = session.step()
        *drafted, draft, verified = seen
        assert isinstance(draft, _core.DraftEnd)
        assert isinstance(verified, _core.Step)
        assert [event.index for event in drafted] == list(range(step.n_drafted))  # type: ignore[attr-defined]
        assert [event.token for event in drafted] == draft.tokens.tolist()  # type: ignore[attr-defined]
        assert len(draft.tokens) == step.n_drafted == verified.n_drafted
        assert draft.tokens[: step.n_accepted].tolist() == step.tokens[:-1].tolist()
        assert verified.tokens.tolist() == step.tokens.tolist()
        assert min(step.verify_ns, step.draft_ns, draft.draft_ns) > 0


def test_draft_tokens_come_while_the_draft_model_drafts(lab: Lab, target: Path) -> None:
    session = speculative(lab, target)
    times: list[int] = []
    session.on("draft_token", lambda event: (times.append(time.perf_counter_ns()), time.sleep(0.01)))
    session.prefill(prompt(30))
    step = session.step()
    assert len(times) == 4
    assert step.draft_ns > 4 * 10_000_000, "the callbacks lie inside the draft"


def test_a_callback_may_change_the_draft_length_and_nothing_else(lab: Lab, target: Path) -> None:
    session = speculative(lab, target)
    calls: list[Callable[[], object]] = [
        session.step,
        session.reset,
        session.close,
        lambda: session.on("draft_end", None),
    ]

    def callback(_step: _core.Step) -> None:
        session.set_draft_length(2)
        for call in calls:
            with pytest.raises(InputError, match="in use"):
                call()

    session.on("verify_end", callback)
    session.prefill(prompt(30))
    assert session.step().n_drafted == 4
    assert session.step().n_drafted == 2


def test_two_threads_at_a_time_are_refused(lab: Lab, target: Path) -> None:
    session = speculative(lab, target)
    inside, go_on = threading.Event(), threading.Event()

    def wait(_event: object) -> None:
        inside.set()
        go_on.wait(10)

    session.on("draft_end", wait)
    session.prefill(prompt(30))
    thread = threading.Thread(target=session.step)
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(InputError, match="in use"):
            session.step()
    finally:
        go_on.set()
        thread.join()


def prefill_for_ever(session: _core.Session) -> None:
    for seed in range(1000):
        session.prefill(prompt(4000, seed=seed))


def test_a_signal_handler_that_raises_stops_a_prefill(lab: Lab, target: Path) -> None:
    """Ctrl-C arrives in the main thread while the library works without the GIL."""
    session = lab.session(lab.context(target, n_ctx=4096, n_batch=4096, n_ubatch=512), **GREEDY)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            prefill_for_ever(session)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - started < 10
    assert generate(session, prompt(30), 10) == generate(lab.plain(target, **GREEDY), prompt(30), 10)


def test_the_gil_is_free_while_the_library_works(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target, n_ctx=4096, n_batch=4096), **GREEDY)
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before, started = ticks, time.perf_counter()
        session.prefill(prompt(4000))
        assert time.perf_counter() - started > 0.02
        assert ticks - before > 3
    finally:
        done.set()
        thread.join()
