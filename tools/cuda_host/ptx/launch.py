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
        ("params", ctypes.c_void_p),
        ("shared", ctypes.c_uint64),
        ("window", ctypes.c_uint64),
        ("window_size", ctypes.c_uint64),
        ("window_offset", ctypes.c_int64),
        ("complain", _COMPLAIN),
    ]


class Kernel:
    """A kernel of PTX text, compiled in `folder`."""

    def __init__(self, text: str, name: str, folder: Path) -> None:
        source, library = folder / f"{name}.ptx", folder / f"{name}.so"
        source.write_text(text)
        self.unknown = build(source, name, library)
        self._library = ctypes.CDLL(str(library))

    def __call__(
        self,
        *arguments: np.ndarray | int,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (32,),
        shared: int = 0,
    ) -> list[str]:
        """Run the kernel. Arrays are passed by address and written in place, and integers as 8 bytes. Return
        the kernel's complaints."""
        values = (each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments)
        words = [ctypes.c_int64(value) for value in values]
        addresses = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        params = ctypes.create_string_buffer(self._library.ptx_pack(addresses, None) + 8)
        self._library.ptx_pack(addresses, params)
        said: list[str] = []
        launch = _Launch(
            _Index(*grid, *[1] * (3 - len(grid))),
            _Index(*block, *[1] * (3 - len(block))),
            ctypes.addressof(params),
            shared,
            complain=_COMPLAIN(lambda text: said.append(text.decode())),
        )
        self._library.ptx_run(ctypes.byref(launch))
        return said
