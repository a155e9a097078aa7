"""The process in which the tests of a module run what may end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.driver import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker
