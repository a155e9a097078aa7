"""The process in which the tests of a module run what may end it."""

from __future__ import annotations

import pytest

from tests.fuzz.driver import Worker


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker
