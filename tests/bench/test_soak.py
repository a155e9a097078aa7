"""A short form of the leak test. The long form makes 10,000 generations."""

from __future__ import annotations

from bench.soak import Usage, growth, soak_engine


def test_short_generations_leave_nothing() -> None:
    """Reads, cancellations and dropped generations leave no thread, no open file, no place and no cell."""
    looks, endings = soak_engine(100, parallel=3, n_threads=6, ctx=256)
    assert looks[-1].n_done == sum(endings.values()) == 100
    assert set(endings) == {"read", "cancel", "cancel early", "drop"}
    assert growth(looks[0], looks[-1], most_mb=32) == []


def test_what_counts_as_a_leak() -> None:
    before = Usage(10, 5, 7, 100.0)
    assert growth(before, Usage(99, 5, 7, 115.9), 16) == []
    faults = growth(before, Usage(99, 6, 8, 116.1), 16)
    assert faults == [
        "threads grew from 5 to 6",
        "open files grew from 7 to 8",
        "memory grew from 100 to 116 MB",
    ]
