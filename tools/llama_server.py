"""Build llama.cpp's own server from the pinned source, as published: `python -m tools.llama_server`.

The program prints the path of `llama-server` in `build/llama-server`. A second run builds only what is
missing. The options are upstream's, but without web pages, TLS and other backends than the CPU's. It needs
CMake and a compiler, and takes several minutes at first. It uses ccache where that is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from spac.errors import InputError, one_line
from tools.patches.source import ROOT, llama_source

FOLDER = ROOT / "build" / "llama-server"
PROGRAM = FOLDER / "build" / "bin" / "llama-server"
OFF = (
    "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI",
    "LLAMA_OPENSSL", "MTMD_VIDEO", "GGML_CCACHE", "BUILD_SHARED_LIBS",
)  # fmt: skip
"""CMake's options that are switched off. None changes what a model computes."""


def unpack(folder: Path) -> Path:
    """Return the folder of the pinned source, unpacked below `folder`. Raise SourceError."""
    version, sha256 = llama_source.read_pin(ROOT / "LLAMA_CPP_VERSION")
    source, stamp = folder / "source", folder / "source.stamp"
    if stamp.is_file() and stamp.read_text() == sha256:
        return source
    sdist = llama_source.fetch_sdist(version, sha256, llama_source.cache_folder(folder))
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, _, member.name = member.name.partition(f"/{llama_source.INSIDE_SDIST}")
            if member.isfile() and member.name:
                archive.extract(member, source, filter="data")
    stamp.write_text(sha256)
    return source


def build() -> Path:
    """Return the path of the program, built if need be. Raise InputError and SourceError."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    source, objects = unpack(FOLDER), FOLDER / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON"]
    options += [f"-D{name}=OFF" for name in OFF]
    options += ["-DLLAMA_BUILD_NUMBER=0", "-DLLAMA_BUILD_COMMIT=pinned"]
    if shutil.which("ccache"):
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
    jobs = str(os.cpu_count() or 1)
    for command in (
        ["cmake", "-S", str(source), "-B", str(objects), *options],
        ["cmake", "--build", str(objects), "--target", "llama-server", "--parallel", jobs],
    ):
        try:
            done = subprocess.run(command, stdout=sys.stderr)
        except OSError as error:
            raise InputError(f"llama-server is built with CMake: {one_line(error)}") from None
        if done.returncode != 0:
            raise InputError(f"llama-server cannot be built: `{' '.join(command[:3])} …` failed; see above")
    return PROGRAM


def main() -> int:
    """Build the program and print its path. Return the exit code."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        print(build())
    except (InputError, llama_source.SourceError) as error:
        print(one_line(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
