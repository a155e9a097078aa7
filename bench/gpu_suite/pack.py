"""Pack what `python -m bench gpu` needs on a machine without a network, beside the tree itself.

FOLDER (default: build/carry) gets llama.cpp's source, Python's modules for one version of Python, and the
commit. With --cuda-build it gets the objects of ggml-cuda, which take an hour of one core to compile. BUILD
is configured with -DSPAC_CUDA=on -DSPAC_BUILD_REFERENCE=ON -DSPAC_CUDA_ARCHITECTURES=90-real: machine code
for one architecture, without intermediate code.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench.processes import ROOT

sys.path.insert(0, str(ROOT / "cmake"))

from cuda_source_id import source_id

from tools.patches import source

LIMIT = 45_000_000
"""Bytes that may travel, with the tree: what a machine is given has 67 MB, and the tree grows."""
ARCHIVES = 32_500_000
"""Bytes of the archives that this program makes, with objects for one architecture."""
LEFT_OUT = "python/spac/demo/*.gguf"
"""Files of the tree that stay here. `python -m bench gpu` makes another pair."""
MODULES = ("cffi", "pycparser", "gguf", "tqdm", "pyyaml", "pybind11", "jinja2", "markupsafe", "diskcache",
           "typing_extensions", "ninja", "uvicorn", "starlette", "sse-starlette", "anyio", "sniffio", "idna",
           "h11", "click", "prometheus-client", "markdown-it-py", "mdurl", "mdit-py-plugins", "math-core",
           "pygments", "pypdf")  # fmt: skip
"""Distributions that the machine may lack. It has to have numpy."""
UNUSED = ("cann", "et", "hexagon", "hip", "metal", "musa", "opencl", "openvino", "sycl", "virtgpu", "vulkan",
          "webgpu", "zdnn", "zendnn")  # fmt: skip
"""Backends of ggml that are not built and not included by csrc. They are most of its source."""
MEDIA = (".jpeg", ".jpg", ".png", ".mp3", ".mp4", ".wav")
OBJECTS = {
    "llama/ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir": "common",
    "CMakeFiles/spac-reference-ggml-cuda.dir/llama.cpp/pristine/ggml/src/ggml-cuda": "published",
}
"""The build's folders of objects. Common ones that are also published are patched."""


class PackError(ValueError):
    """Something is missing. The message says what to do."""


def do(*words: object) -> str:
    """Run a command in the tree and return its output. Raise PackError with the end of it if it fails."""
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"{words[0]} failed: {(done.stdout + done.stderr).strip()[-400:]}")
    return done.stdout


def write(to: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write an archive of names and contents."""
    with tarfile.open(to, "w:xz", preset=9) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))


def files_of(folder: Path) -> Iterable[tuple[str, bytes]]:
    """Yield the names and contents of a folder's files."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def pack_source(sdist: Path, to: Path) -> None:
    """Pack the part of llama.cpp's source that the build reads."""
    unused = tuple(f"ggml/src/ggml-{name}/" for name in UNUSED)
    files = source.llama_source.files_of_sdist(sdist)
    write(to, (each for each in files if not each[0].startswith(unused) and not each[0].endswith(MEDIA)))


def pack_modules(sdist: Path, to: Path, python: str) -> None:
    """Pack a folder for PYTHONPATH: `MODULES` for that Python, and llama-cpp-python's Python half."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
        tags = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
        words = ["--quiet", "--no-deps", "--no-compile", "--only-binary=:all:", "--target", folder]
        words += ["--implementation", "cp", "--python-version", python]
        words += [f"--platform={tag}" for tag in tags]
        do(sys.executable, "-m", "pip", "install", *words, *MODULES)
        for member in archive:
            name = member.name.partition("/")[2]
            if name.startswith("llama_cpp/") and name.endswith(".py"):
                member.name = name
                archive.extract(member, folder, filter="data")
        write(to, files_of(Path(folder)))


def pack_objects(build: Path, to: Path) -> None:
    """Compile ggml-cuda in the build folder if need be, and pack it."""
    do("cmake", build)  # applies the patches as they are now
    do("ninja", "-C", build, "ggml-cuda", "spac-reference-ggml-cuda")
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE))
    architecture = re.fullmatch(r"(\d+)-real", cache.get("SPAC_CUDA_ARCHITECTURES", ""))
    if architecture is None:
        raise PackError(f"{build}: configure it with -DSPAC_CUDA_ARCHITECTURES=90-real, one architecture")
    trees = [build / "llama.cpp" / name for name in ("patched", "pristine")]
    published = {path.name for path in (build / list(OBJECTS)[1]).rglob("*.o")}
    cudart = Path(cache.get("CUDA_cudart_static_LIBRARY", "libcudart_static.a"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for top, kind in OBJECTS.items():
            for path in sorted((build / top).rglob("*.o")):
                place = folder / ("patched" if kind == "common" and path.name in published else kind)
                place.mkdir(exist_ok=True)
                do("objcopy", "--strip-debug", path, place / path.name)
        (folder / cudart.name).write_bytes(cudart.read_bytes())
        (folder / "source_id").write_text(source_id(*trees) + "\n")
        (folder / "capability").write_text(architecture[1] + "\n")
        write(to, files_of(folder))


def tree_bytes() -> int:
    """Return the bytes of the files that travel with the tree: what git does not ignore, without LEFT_OUT."""
    listed = do("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    travel = [ROOT / name for name in listed if name and not Path(name).match(LEFT_OUT)]
    return sum(path.stat().st_size for path in travel if path.is_file())


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "carry", metavar="FOLDER")
    parser.add_argument("--cuda-build", type=Path, help="take ggml-cuda's objects from this build folder")
    parser.add_argument("--python", default="3.12", help="the machine's version")


def run(args: argparse.Namespace) -> int:
    """Return the exit code: 1 if the pack is too large."""
    args.folder.mkdir(parents=True, exist_ok=True)
    sdist = source.sdist()
    if sdist is None:
        raise PackError("llama.cpp's sdist is not in the cache folder: build spac first")
    pack_source(sdist, args.folder / "source.tar.xz")
    pack_modules(sdist, args.folder / "site.tar.xz", args.python)
    if args.cuda_build:
        pack_objects(args.cuda_build.resolve(), args.folder / "cuda.tar.xz")
    (args.folder / "commit").write_text(do("git", "describe", "--always", "--dirty=+"))
    total = tree_bytes()
    for path in sorted(args.folder.iterdir()):
        total += path.stat().st_size
        print(f"{path.name:<16} {path.stat().st_size / 1e6:6.1f} MB")
    print(f"without {LEFT_OUT}, which has to stay here (rm, and git checkout afterwards):")
    print(f"{'with the tree':<16} {total / 1e6:6.1f} MB of {LIMIT / 1e6:.1f}")
    return int(total > LIMIT)
