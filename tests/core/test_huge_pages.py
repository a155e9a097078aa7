"""Copies of files on huge pages have the right content, take the expected memory, and can end early."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core
from spac.errors import InputError

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
FORGIVING = (10**9, 10**12, 1)
"""Budget for stalls that no copy exceeds."""


def copies(
    n_threads: int = 2,
    *,
    drop_cache: bool = False,
    most_seconds: float = 0.0,
    stalls: tuple[int, int, int] = FORGIVING,
    progress: Callable[[int], bool] | None = None,
) -> _core.HugeCopies:
    return _core.HugeCopies(n_threads, drop_cache, most_seconds, *stalls, progress)


def policy(address: int) -> str:
    """Return the policy that the system reports for the memory at an address."""
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        begin, chosen, *_ = line.split()
        if int(begin, 16) == address:
            return chosen
    raise AssertionError("the system does not list the region")


def mapped(begin: int, end: int) -> int:
    """Return how many bytes of these addresses are mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"(\w+)-(\w+) ", line)
        assert match is not None
        total += max(0, min(end, int(match[2], 16)) - max(begin, int(match[1], 16)))
    return total


@pytest.fixture(scope="module")
def file() -> Iterator[BinaryIO]:
    """Yield a file of a little more than 9 MiB, in which every 8 bytes are different."""
    with tempfile.TemporaryFile() as made:
        made.write(b"".join(i.to_bytes(8, "little") for i in range(9 * MIB // 8 + 1)) + b"abc")
        made.flush()
        yield made


def content(file: BinaryIO, n_bytes: int) -> bytes:
    return os.pread(file.fileno(), n_bytes, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9 * MIB), st.integers(1, 5), st.booleans())
def test_a_copy_is_the_file_and_nothing_else(n_bytes: int, n_threads: int, drop_cache: bool) -> None:
    with tempfile.TemporaryFile() as made:
        made.truncate(9 * MIB)
        for at in {0, n_bytes // 2, n_bytes - 1}:
            os.pwrite(made.fileno(), bytes([at % 255 + 1]), at)
        making = copies(n_threads, drop_cache=drop_cache)
        region = making.copy(made.fileno(), n_bytes)
        expected = content(made, n_bytes)
    whole_pages = -(-n_bytes // PAGE) * PAGE
    begin, size = region.address, region.size
    assert (begin % _core.HUGE_PAGE, size) == (0, whole_pages)
    with memoryview(region) as view:
        assert view.readonly
        assert view[:n_bytes] == expected
        assert not any(view[n_bytes:])
    assert mapped(begin, begin + size) == size
    assert (making.bytes, making.failure, making.stopped) == (n_bytes, "", False)
    del region
    assert mapped(begin, begin + size) == 0


def test_files_are_added_up(file: BinaryIO) -> None:
    reported: list[int] = []
    making = copies(progress=lambda done: reported.append(done) or True)
    first, second = making.copy(file.fileno(), 5 * MIB), making.copy(file.fileno(), 3 * MIB)
    with memoryview(first) as view:
        assert view == content(file, 5 * MIB)
    assert making.bytes == 8 * MIB
    assert making.seconds > 0
    assert making.huge_bytes == first.huge_bytes + second.huge_bytes
    assert reported == sorted(reported)
    assert reported[0] <= 5 * MIB <= reported[-1] <= 8 * MIB, "the second counts the first"


def test_what_fails_leaves_no_region(file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    folder = os.open("/", os.O_RDONLY)
    try:
        for fd, n_bytes, why in (
            (file.fileno(), size + 1, "the file ends early"),
            (file.fileno(), 1 << 46, "Cannot allocate memory"),
            (file.fileno(), 2**64 - 1, "Cannot allocate memory"),
            (folder, 4 * MIB, "Is a directory"),
            (-1, 4 * MIB, "Bad file descriptor"),
        ):
            making = copies()
            assert making.copy(fd, n_bytes).size == 0
            assert (making.failure, making.bytes, making.stopped) == (why, 0, False)
    finally:
        os.close(folder)


def test_a_copy_that_would_take_too_long_is_given_up(file: BinaryIO) -> None:
    making = copies(most_seconds=1e-9)
    assert making.copy(file.fileno(), 9 * MIB).size == 0
    assert making.failure == "the copy would take 0 s"
    patient = copies(most_seconds=1e9)
    assert patient.copy(file.fileno(), 9 * MIB).size == 9 * MIB


def test_progress_stops_it(file: BinaryIO) -> None:
    making = copies(progress=lambda _: False)
    assert making.copy(file.fileno(), 9 * MIB).size == 0
    assert (making.stopped, making.failure, making.error) == (True, "", None)


def test_what_progress_raises_is_kept(file: BinaryIO) -> None:
    def impatient(_: int) -> bool:
        raise KeyboardInterrupt

    for progress, kind in ((impatient, KeyboardInterrupt), (lambda: True, TypeError)):
        making = copies(progress=progress)
        assert making.copy(file.fileno(), 9 * MIB).size == 0
        assert making.stopped
        assert isinstance(making.error, kind)


def huge_pages_are_there() -> bool:
    text = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return text.exists() and "[never]" not in text.read_text()


@pytest.mark.skipif(not huge_pages_are_there(), reason="no transparent huge pages")
def test_stalls_are_bounded() -> None:
    with tempfile.TemporaryFile() as made:
        made.truncate(64 * MIB)
        calm, stalled, blameless = (
            copies(1, stalls=stalls) for stalls in (FORGIVING, (0, 0, 0), (0, 0, 10**12))
        )
        for making in (calm, stalled, blameless):
            assert making.copy(made.fileno(), 64 * MIB).size == 64 * MIB
    if calm.huge_bytes < 64 * MIB or blameless.huge_bytes < 64 * MIB:
        pytest.skip("the system has too few huge pages now")
    assert not calm.stalled
    assert stalled.stalled
    assert stalled.huge_bytes == _core.HUGE_PAGE, "the first one, whose touch spent the budget"
    assert not blameless.stalled, "no memory was compacted, so small pages would be no faster"


def test_rates_are_measured() -> None:
    with tempfile.TemporaryFile() as made:
        made.truncate(33 * MIB)
        rates = _core.measure_read_rates(made.fileno(), 32 * MIB, 2)
        assert rates.bytes == 32 * MIB
        assert 0 <= rates.huge_bytes <= rates.bytes
        assert min(rates.mapped_gb_s, rates.huge_gb_s, rates.gain, rates.copy_gb_s) > 0
        with pytest.raises(InputError, match="too small"):
            _core.measure_read_rates(made.fileno(), MIB, 1)
    with pytest.raises(InputError, match="no file: Bad file descriptor"):
        _core.measure_read_rates(-1, 32 * MIB, 2)
    with Path("/dev/null").open("rb") as nothing, pytest.raises(InputError, match="too small"):
        _core.measure_read_rates(nothing.fileno(), 32 * MIB, 2)


def may_place_memory() -> bool:
    """Return whether the system lets this process choose nodes. Containers may refuse it."""
    number = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
    if number is None or not Path("/proc/self/numa_maps").exists():
        return False
    area, interleave, mask = mmap.mmap(-1, PAGE), 3, ctypes.c_ulong(1)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    call = ctypes.CDLL(None, use_errno=True).syscall
    return (
        call(number, ctypes.c_void_p(address), ctypes.c_ulong(PAGE), interleave, ctypes.byref(mask), 65, 0)
        == 0
    )


@pytest.mark.skipif(not may_place_memory(), reason="this system lets no process choose NUMA nodes")
def test_pages_are_spread_over_nodes(file: BinaryIO) -> None:
    for nodes, expected in (([0], "interleave:0"), ([], "default"), ([1000], "default")):
        spread = _core.HugeCopies(2, False, 0.0, *FORGIVING, None, nodes)
        region = spread.copy(file.fileno(), 3 * MIB)
        assert bytes(memoryview(region)[: 3 * MIB]) == content(file, 3 * MIB)
        assert policy(region.address).startswith(expected)
