"""Run a kernel of PTX text from Python, on numpy arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from .__main__ import build


class _Index(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in "xyz"]


_COMPLAIN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class _Launch(ctypes.Structure):
    """The structure ptx::Launch of lanes.h."""

    _fields_ = [
        ("grid", _Index),
        ("block", _Index),
        ("params", ctypes.c_char_p),
        ("shared", ctypes.c_uint64),
        ("window", ctypes.c_uint64),
        ("window_size", ctypes.c_uint64),
        ("window_offset", ctypes.c_int64),
        ("complain", _COMPLAIN),
    ]


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("run", ctypes.c_void_p),
        ("static_shared", ctypes.c_uint64),
        ("waits", ctypes.c_bool),
        ("n_params", ctypes.c_uint32),
        ("param_offsets", ctypes.POINTER(ctypes.c_uint32)),
        ("param_sizes", ctypes.POINTER(ctypes.c_uint32)),
    ]


class Kernel:
    """A kernel of PTX text, compiled in `folder`."""

    def __init__(self, text: str, name: str, folder: Path) -> None:
        source, library = folder / f"{name}.ptx", folder / f"{name}.so"
        source.write_text(text)
        self.unknown = build(source, name, library)
        self._library = ctypes.CDLL(str(library))
        self._library.ptx_kernel.restype = ctypes.POINTER(_Kernel)
        self._kernel = self._library.ptx_kernel().contents

    def __call__(
        self,
        *arguments: np.ndarray | int | float,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (32,),
        shared: int = 0,
    ) -> list[str]:
        """Run the kernel. Arrays are passed by address and written in place. Return the kernel's
        complaints."""
        kernel = self._kernel
        sizes = [kernel.param_sizes[i] for i in range(kernel.n_params)]
        offsets = [kernel.param_offsets[i] for i in range(kernel.n_params)]
        if len(arguments) != len(sizes):
            raise ValueError(f"{len(sizes)} arguments are needed")
        params = bytearray(sum(sizes) + 8 * len(sizes) + 8)
        for value, size, offset in zip(arguments, sizes, offsets, strict=True):
            if isinstance(value, np.ndarray):
                raw = value.ctypes.data.to_bytes(8, "little")
            elif isinstance(value, float):
                raw = np.float32(value).tobytes()
            else:
                raw = int(value).to_bytes(size, "little", signed=value < 0)
            params[offset : offset + size] = raw
        said: list[str] = []
        launch = _Launch(
            _Index(*grid, *[1] * (3 - len(grid))),
            _Index(*block, *[1] * (3 - len(block))),
            bytes(params),
            shared,
            0,
            0,
            0,
            _COMPLAIN(lambda text: said.append(text.decode())),
        )
        self._library.ptx_run(ctypes.byref(launch))
        return said
