"""Between two reports of a session, a prompt's progress is estimated from measured times."""

from types import SimpleNamespace

import pytest

from spac.engine import Engine
from spac.engine.prompt_progress import PromptProgress
from tests.engine.conftest import config


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0)


@pytest.fixture
def progress(clock):
    return PromptProgress(lambda: clock.now)


def test_nothing_is_known_at_first(progress, clock):
    assert progress.now() is None
    progress.begin(4096)
    clock.now += 5
    reading = progress.now()
    assert (reading.done, reading.total, reading.elapsed_s, reading.left_s) == (0, 4096, 5, None)
    assert reading.is_long
    assert reading.left == ""
    progress.end()
    assert progress.now() is None


def test_a_guess_is_used_until_a_time_is_measured(progress, clock):
    progress.begin(4000)
    progress.expect(2000, 3.0)
    assert progress.now().left_s == 6
    clock.now += 1
    progress.report(2000, 4000)
    assert progress.now().left_s == 1
    progress.expect(2000, 3.0)
    assert progress.now().left_s == 1


def test_progress_inside_a_graph_is_estimated(progress, clock):
    progress.begin(8192)
    progress.expect(2048)
    clock.now += 4
    progress.report(2048, 8192)
    reading = progress.now()
    assert (reading.done, reading.left_s) == (2048, 12)
    assert reading.left == ", about 12 s left"
    clock.now += 1
    reading = progress.now()
    assert (reading.done, reading.left_s) == (2048 + 512, 11)
    clock.now += 60  # this graph takes longer than the one before
    reading = progress.now()
    assert 4000 < reading.done < 4096
    assert reading.left_s > 8
    progress.report(8192, 8192)
    assert progress.now().done == 8192
    assert progress.now().left_s == 0


def test_the_next_prompt_is_estimated_from_the_start(progress, clock):
    for _ in range(2):
        progress.begin(4000)
        progress.expect(4000)
        clock.now += 8
        progress.report(4000, 4000)
        progress.end()
    progress.begin(3999)
    assert progress.now().left_s == pytest.approx(8, abs=0.01)
    progress.skip(1999)
    progress.expect(2000)
    reading = progress.now()
    assert (reading.done, reading.total) == (1999, 3999)
    assert reading.left_s == pytest.approx(4, abs=0.01)
    clock.now += 1.9
    assert progress.now().is_long
    progress.begin(500)
    assert not progress.now().is_long  # about a second
    assert progress.now().left == ""


def test_an_engine_follows_its_prompts(target):
    with Engine(config(target, ctx=2048, ubatch=128, batch=128)) as engine:
        engine.reading._clock = lambda: 0.0  # An estimate would grow while the machine is busy elsewhere.
        seen = []

        def note(done, total):
            reading = engine.reading.now()
            seen.append((done, reading.done if reading is not None else None, total))

        for _ in engine.generate([*range(5, 205), *range(5, 205)], 2, progress=note):
            pass
        assert seen == [(0, 0, 400), (128, 128, 400), (256, 256, 400), (384, 384, 400), (400, None, 400)]
        assert engine.reading.now() is None
        seen.clear()
        for _ in engine.generate([*range(5, 205), *range(5, 205)], 2, progress=note):
            pass
        assert seen == [(0, 0, 400), (399, 399, 400), (400, None, 400)]  # the memory held nearly all of it
