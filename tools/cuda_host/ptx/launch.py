"""Run kernels of PTX text from Python, on numpy arrays."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .__main__ import make
from .translate import translate


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
    """A kernel of a library that `kernels` has compiled. `unknown` has the instructions that it lacks."""

    def __init__(self, library: ctypes.CDLL, name: str, unknown: list[str]) -> None:
        self._pack, self._run = library[f"ptx_pack_{name}"], library[f"ptx_run_{name}"]
        self.unknown = unknown

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
        params = ctypes.create_string_buffer(self._pack(addresses, None) + 8)
        self._pack(addresses, params)
        said: list[str] = []
        launch = _Launch(
            _Index(*grid, *[1] * (3 - len(grid))),
            _Index(*block, *[1] * (3 - len(block))),
            ctypes.addressof(params),
            shared,
            complain=_COMPLAIN(lambda text: said.append(text.decode())),
        )
        self._run(ctypes.byref(launch))
        return said


def kernels(texts: Mapping[str, str], folder: Path) -> dict[str, Kernel]:
    """Return kernels by name. Each has a PTX text of its own, and all are compiled at once in `folder`."""
    header, unknown = '#include "matrices.h"', dict[str, list[str]]()
    sources = [header]
    for name, text in texts.items():
        source, unknown[name] = translate(text, name)
        source = re.sub(r"\b(ptx_pack|ptx_run)\b", rf"\1_{name}", source.removeprefix(header))
        sources.append(f"namespace of_{name} {{\n{source}\n}}\n")
    make("\n".join(sources), folder / "kernels.so")
    library = ctypes.CDLL(str(folder / "kernels.so"))
    return {name: Kernel(library, name, unknown[name]) for name in texts}
