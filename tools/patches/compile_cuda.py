"""Compile the CUDA files that the patches touch, those that include a touched header, and our code for CUDA.

It fails too if ggml-cuda calls a function of the driver that `cuda_memory.cpp` does not have.

This takes minutes, where all of ggml-cuda takes half an hour. It needs nvcc and cuBLAS (PyPI's nvidia-cublas
will do), and no GPU.

    python -m tools.patches.compile_cuda --build FOLDER [--architectures 80;90] [--cublas FOLDER] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.patches import source


def configure(build: Path, architectures: str, cublas: str | None) -> None:
    options = ["-DSPAC_CUDA=on", f"-DSPAC_CUDA_ARCHITECTURES={architectures}"]
    options += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    if cublas:
        options.append(f"-DSPAC_CUBLAS_ROOT={cublas}")
    if shutil.which("ccache"):
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX", "CUDA")]
    done = subprocess.run(
        ["cmake", "-S", source.ROOT, "-B", build, *options], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"cmake could not configure a build with CUDA:\n{done.stderr.strip()}")


def touched(build: Path) -> list[str]:
    """Return the .cu files of ggml-cuda itself that are patched or include a patched header. Of its template
    instances that do, return one for each header."""
    folder = build / "llama.cpp" / "patched" / "ggml" / "src" / "ggml-cuda"
    names = {Path(name).name for name in source.patched_names() if "/ggml-cuda/" in name}
    found, instanced = [], set[str]()
    for file in (*sorted(folder.glob("*.cu")), *sorted(folder.glob("template-instances/*.cu"))):
        headers = re.findall(r'#include "(?:ggml-cuda/|\.\./)?([\w.-]+\.cuh)"', file.read_text())
        included = names.intersection(headers)
        if file.parent != folder:
            included -= instanced
            instanced |= included
        if file.name in names or included:
            found.append(str(file))
    return found


def own() -> list[str]:
    """Return spac's own files for CUDA."""
    return [str(path) for path in sorted((source.ROOT / "csrc").rglob("cuda_*.cpp"))]


def object_of(entry: dict[str, str]) -> Path:
    """Return the object that an entry of compile_commands.json makes."""
    words = shlex.split(entry["command"])
    return Path(entry["directory"]) / words[words.index("-o") + 1]


def unknown_driver_calls(entries: list[dict[str, str]]) -> set[str]:
    """Return the driver's functions that compiled files call, and that none of them defines."""
    objects = [object_of(entry) for entry in entries]
    done = subprocess.run(["nm", *objects], capture_output=True, text=True, check=True)
    symbols = {kind: set(re.findall(rf" {kind} (cu[A-Z]\w+)$", done.stdout, re.MULTILINE)) for kind in "UT"}
    return symbols["U"] - symbols["T"]


def compile_file(entry: dict[str, str]) -> tuple[str, float, str]:
    """Return (name, seconds, the compiler's complaints) of one entry of compile_commands.json."""
    start = time.monotonic()
    object_of(entry).parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        entry["command"], shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False
    )
    complaint = "" if done.returncode == 0 else done.stdout + done.stderr
    return Path(entry["file"]).name, time.monotonic() - start, complaint


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build folder of its own")
    parser.add_argument("--architectures", default="90", help="as CMAKE_CUDA_ARCHITECTURES takes them")
    parser.add_argument("--cublas", help="a folder with cuBLAS's include/ and lib/")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    build = args.build.resolve()
    configure(build, args.architectures, args.cublas)
    files = touched(build) + own()
    entries = [e for e in json.loads((build / "compile_commands.json").read_text()) if e["file"] in files]
    assert files
    assert len(entries) == len(files)
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, seconds, complaint in pool.map(compile_file, entries):
            print(f"{name}: {'failed' if complaint else 'compiled'} in {seconds:.0f} s", flush=True)
            if complaint:
                failed += 1
                print(complaint, file=sys.stderr)
    print(f"{len(files) - failed} of {len(files)} CUDA files compiled for {args.architectures}")
    unknown = set() if failed else unknown_driver_calls(entries)
    if unknown:
        print(f"cuda_memory.cpp lacks functions of the driver: {', '.join(sorted(unknown))}", file=sys.stderr)
    return 1 if failed or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
