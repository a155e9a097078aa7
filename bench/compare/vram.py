"""Watch a GPU's memory in use from outside while a process runs."""

from __future__ import annotations

import ctypes
import threading

POLL_S = 0.1


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class VramMeter:
    """A meter that polls how much of a GPU's memory is in use while a process runs. It gives None where
    NVIDIA's management library cannot tell."""

    def __init__(self, device: str) -> None:
        """Watch `device`: "CUDA0", …; others have no memory of their own."""
        self._nvml, self._handle = None, ctypes.c_void_p()
        if device.upper().startswith("CUDA"):
            try:
                nvml, index = ctypes.CDLL("libnvidia-ml.so.1"), int(device[4:] or 0)
                if not (
                    nvml.nvmlInit_v2()
                    or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle))
                ):
                    self._nvml = nvml
            except (OSError, AttributeError):
                pass
        self._before = self._peak = self._read()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _read(self) -> int | None:
        memory = _Memory()
        if self._nvml is None or self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            return None
        return int(memory.used)

    def _poll(self) -> None:
        while not self._done.wait(POLL_S):
            self._peak = max(self._peak or 0, self._read() or 0)

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
