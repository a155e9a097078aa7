"""Ask the CUDA driver for what spac relies on, with the standard library alone, one question a process.

A question that hangs or crashes loses only its own line.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import processes

SECONDS = 20.0  # seconds of one question
GB = 1 << 30
ATTRIBUTES = {
    "stream memory operations": 92,
    "host registration": 99,
    "read-only host registration": 113,
    "registered memory at its host address": 91,
    "pageable memory access": 88,
    "copy engines": 40,
}


class Failed(ValueError):  # noqa: N818
    """A call of the driver failed. The message names the call and its error."""


class Driver:
    """The driver with a context of the first GPU. It raises Failed where a call does not succeed."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self("cuCtxSetCurrent", context)
        self.stream = self.new_stream()

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'?').decode()} ({status})")

    def new_stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)  # non-blocking
        return stream

    def pinned(self, n_bytes: int) -> int:
        """Return the address of pinned host memory, mapped into the device's address space."""
        pointer = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(n_bytes), 3)
        assert pointer.value is not None
        return pointer.value

    def device_memory(self, n_bytes: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
        return pointer

    def to_device(self, to: ctypes.c_uint64, at: int, n_bytes: int, stream: object = None) -> None:
        size = ctypes.c_size_t(n_bytes)
        self("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(at), size, stream or self.stream)

    def to_host(self, at: int, source: ctypes.c_uint64, n_bytes: int) -> None:
        self("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(at), source, ctypes.c_size_t(n_bytes), self.stream)

    def wait(self) -> None:
        self("cuStreamSynchronize", self.stream)


def attributes() -> str:
    """Return the driver's description of the card."""
    driver, found = Driver(), []
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        driver("cuDeviceGetAttribute", ctypes.byref(value), number, driver.device)
        found.append(f"{name} {value.value}")
    return ", ".join(found)


def gates(*, copies: bool = False, bulk: bool = False) -> str:
    """Measure a round trip between stream and host, which signal with words of pinned memory.

    copies: with the copies of a layer; bulk: beside copies of 64 MB on another stream. Raise Failed where a
    signal does not come within 5 s.
    """
    driver, rounds, times = Driver(), 16, []  # round trips queued at a time
    words, host, device = driver.pinned(4096), driver.pinned(1 << 16), driver.device_memory(1 << 16)
    signalled, opened = (ctypes.c_uint32.from_address(words + at) for at in (0, 256))
    if bulk:
        n, side = 64 << 20, driver.new_stream()
        large, large_device = driver.pinned(n), driver.device_memory(n)
        for _ in range(200):
            driver.to_device(large_device, large, n, side)
    for _ in range(8):
        signalled.value = opened.value = 0
        for n in range(1, rounds + 1):
            if copies:
                driver.to_host(host, device, 8192)
                driver.to_host(host + 16384, device, 64)
            for call, at in (("cuStreamWriteValue32_v2", words), ("cuStreamWaitValue32_v2", words + 256)):
                driver(call, driver.stream, ctypes.c_uint64(at), ctypes.c_uint32(n), 0)
            if copies:
                driver.to_device(device, host, 8192)
        begun = time.perf_counter()
        for n in range(1, rounds + 1):
            while signalled.value < n:
                if time.perf_counter() - begun > 5:
                    raise Failed(f"signal {n} of {rounds} has not come within 5 s")
            opened.value = n
        times.append((time.perf_counter() - begun) / rounds * 1e6)
        driver.wait()
    return f"{sorted(times)[len(times) // 2]:.1f} µs a round trip (first {times[0]:.1f})"


def _rate(driver: Driver, copy: Callable[[], None], n_bytes: int) -> float:
    copy()
    driver.wait()
    begun, n = time.perf_counter(), 4
    for _ in range(n):
        copy()
    driver.wait()
    return n * n_bytes / (time.perf_counter() - begun) / 1e9


def link() -> str:
    """Measure the link's bandwidths, from pinned and from pageable memory."""
    driver, n = Driver(), 512 << 20
    host, device = driver.pinned(n), driver.device_memory(n)
    ctypes.memset(host, 1, n)
    down = _rate(driver, lambda: driver.to_device(device, host, n), n)
    up = _rate(driver, lambda: driver.to_host(host, device, n), n)

    def pieces() -> None:
        for i in range(0, n, 1 << 20):
            driver.to_device(device, host + i, 1 << 20)

    small = _rate(driver, pieces, n)
    pageable = mmap.mmap(-1, n)
    at = ctypes.addressof(ctypes.c_char.from_buffer(pageable))
    ctypes.memset(at, 1, n)
    slow = _rate(driver, lambda: driver.to_device(device, at, n), n)
    return (
        f"to the device {down:.1f} GB/s (pieces of 1 MB {small:.1f}), to the host {up:.1f}, "
        f"from pageable memory {slow:.1f}"
    )


def registration(folder: Path | None) -> str:
    """Register 1 GB for reading alone, and copy from it: a mapped file in `folder`, or anonymous memory."""
    driver, n = Driver(), GB
    if folder is None:
        memory = mmap.mmap(-1, n)
        memory.madvise(mmap.MADV_HUGEPAGE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(at, 1, n)
        return _register(driver, at, n, (1,))
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(1 << 20)
        for _ in range(n >> 20):
            file.write(block)
        file.flush()
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        at = libc.mmap(None, n, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        return _register(driver, at, n, (1 | 8, 1))


def _register(driver: Driver, at: int, n: int, flags: tuple[int, ...]) -> str:
    """Try these flags of cuMemHostRegister in turn: 1 portable, 8 read-only."""
    said, device = [], driver.device_memory(n)
    for each in flags:
        begun = time.perf_counter()
        try:
            driver("cuMemHostRegister_v2", ctypes.c_void_p(at), ctypes.c_size_t(n), each)
        except Failed as error:
            said.append(f"flags {each}: {error}")
            continue
        took = time.perf_counter() - begun
        rate = _rate(driver, lambda: driver.to_device(device, at, n), n)
        driver("cuMemHostUnregister", ctypes.c_void_p(at))
        said.append(f"flags {each}: registered in {took:.2f} s, copied at {rate:.1f} GB/s")
    return "; ".join(said)


QUESTIONS: dict[str, Callable[[Path], str]] = {
    "attributes": lambda _: attributes(),
    "gate, stream memory operations": lambda _: gates(),
    "gate, beside bulk copies": lambda _: gates(bulk=True),
    "gate, with a layer's copies": lambda _: gates(copies=True),
    "link": lambda _: link(),
    "registering a file in memory": lambda _: registration(Path("/dev/shm")),
    "registering a file on disk": lambda folder: registration(folder),
    "registering anonymous memory": lambda _: registration(None),
}


def ask(name: str, folder: Path) -> str:
    """Ask one question in a process of its own. Return its answer, or its failure, as one line."""
    words = [sys.executable, "-m", "bench", "probes", folder, "--ask", name]
    with tempfile.TemporaryDirectory() as logs:
        ended = processes.run(words, Path(logs) / "log", SECONDS)
    return f"{name}: {(ended.fault and 'FAILED: ' + ended.fault) or ended.output.strip()}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="on disk, for a file of 1 GB")
    parser.add_argument("--ask", choices=QUESTIONS, help=argparse.SUPPRESS)  # in this process


def run(args: argparse.Namespace) -> None:
    if args.ask:
        return print(QUESTIONS[args.ask](args.folder))
    for name in QUESTIONS:
        print(ask(name, args.folder.resolve()), flush=True)
    return None
