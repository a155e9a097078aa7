"""Make a kernel of a PTX module callable: python -m tools.cuda_host.ptx MODULE.ptx KERNEL OUT.so

The library has ptx_pack(arguments, to) and ptx_run(launch) (lanes.h). Exit code 1 means that the kernel
cannot be translated at all. Unknown single instructions are named on stderr, and the kernel complains where
it reaches one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .module import PtxError
from .translate import translate

HERE = Path(__file__).resolve().parent
# Contraction is off, because PTX says which operations are fused. -O1 is enough: kernels are long, and run a
# few thousand times.
FLAGS = [
    "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-fPIC",
    "-shared",
]  # fmt: skip
HEADER = "matrices.h.gch"  # the precompiled header: a compiler looks for it in every folder of headers


def build(module: Path, kernel: str, out: Path) -> list[str]:
    """Translate and compile, with the precompiled header if it lies beside `out`. Return the instructions
    that are not translated. Raise PtxError and CalledProcessError."""
    source, unknown = translate(module.read_text(), kernel)
    make(source, out)
    return unknown


def make(source: str, out: Path) -> None:
    """Compile C++ to a library, with the precompiled header if it lies beside `out`."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        text, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        text.write_text(source)
        _compile("-I", out.parent, "-I", HERE, "-o", library, text)
        os.replace(library, out)


def precompile(folder: Path) -> None:
    """Write the precompiled header into `folder`. Small kernels compile twice as fast with it."""
    _compile("-x", "c++-header", "-o", folder / HEADER, HERE / "matrices.h")


def _compile(*options: str | Path) -> None:
    command = [os.environ.get("CXX", "c++"), *FLAGS, *map(str, options)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> int:
    module, kernel, out = sys.argv[1:]
    try:
        unknown = build(Path(module), kernel, Path(out))
    except (OSError, PtxError) as error:
        print(f"{kernel}: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{kernel}: {error.stderr[:2000]}", file=sys.stderr)
        return 1
    for text in sorted(set(unknown)):
        print(f"{kernel}: not translated: {text}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
