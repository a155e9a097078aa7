"""The twin that the tests of bench/ make too."""

from tests.bench.conftest import twin

__all__ = ["twin"]
