"""Watch a GPU's memory in use from outside while a process runs."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable

POLL_S = 0.1


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _from_nvml(index: int) -> Callable[[], int | None] | None:
    """Return a function that asks NVIDIA's management library, which takes microseconds; None without the
    library."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, memory = ctypes.c_void_p(), _Memory()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError):
        return None

    def read() -> int | None:
        status = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return None if status else int(memory.used)

    return read if read() is not None else None


def _from_program(index: int) -> int | None:
    """Return what nvidia-smi reports. It keeps a core that computes busy for a while."""
    words = ["nvidia-smi", "-i", str(index), "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(out.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


class VramMeter:
    """A meter that polls how much of a GPU's memory is in use while a process runs. It gives None where
    nobody can tell."""

    def __init__(self, device: str) -> None:
        """Watch `device`: "CUDA0", …; others have no memory of their own."""
        index = int("".join(c for c in device if c.isdigit()) or 0)
        on_gpu = device.upper().startswith("CUDA")
        self._read = (_from_nvml(index) if on_gpu else None) or (lambda: _from_program(index))
        self._before = self._read() if on_gpu else None
        self._peak = self._before
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _poll(self) -> None:
        while not self._done.wait(POLL_S):
            now = self._read()
            if now is not None and self._peak is not None:
                self._peak = max(self._peak, now)

    def __enter__(self) -> VramMeter:
        if self._before is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def used(self) -> int | None:
        """Return the bytes at the peak beyond those before."""
        return None if self._peak is None or self._before is None else self._peak - self._before
