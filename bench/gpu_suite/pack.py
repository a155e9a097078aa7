"""Pack what `session.py` needs on a machine without a network, beside the tree itself.

    python -m bench.gpu_suite.pack [FOLDER] [--cuda-build BUILD] [--results FOLDER]

FOLDER (default: build/carry) gets llama.cpp's source, Python modules as wheels, and the commit. With
--cuda-build (a build folder, configured with -DSPAC_CUDA=on -DSPAC_BUILD_REFERENCE=ON and one architecture)
it gets the objects of ggml-cuda, which take an hour of one core to compile. --results names the OUT of the
last session. The next session continues from there, with the objects that it compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "cmake")]

from cuda_source_id import source_id  # noqa: E402

from bench.gpu_suite.fatbin import prune  # noqa: E402
from bench.gpu_suite.modules import NEEDED  # noqa: E402
from tools.patches import source  # noqa: E402

LIMIT = 64 << 20  # bytes that travel, with the tree
PART = 15 << 20  # bytes of a file that is brought back
PYTHONS = ("3.11", "3.12", "3.13")
BINARY = ("cffi", "pyyaml", "markupsafe")  # one wheel for each of `PYTHONS`
TOO_LARGE = ("numpy",)  # the machine has to have it
# Backends of ggml that are not built and not included by csrc. They are most of its source.
UNUSED = ("cann", "et", "hexagon", "hip", "metal", "musa", "opencl", "openvino", "sycl", "virtgpu", "vulkan",
          "webgpu", "zdnn", "zendnn")  # fmt: skip
# Pictures, sound and films in llama.cpp's tests.
MEDIA = (".jpeg", ".jpg", ".png", ".mp3", ".mp4", ".wav")
OBJECTS = "llama/ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir"
PUBLISHED = "CMakeFiles/spac-reference-ggml-cuda.dir/llama.cpp/pristine/ggml/src/ggml-cuda"
OWN = "csrc/CMakeFiles/spac-cuda.dir"


class PackError(Exception):
    """Something is missing. The message says what to do."""


def sdist() -> Path:
    found = source.sdist()
    if found is None:
        raise PackError("llama.cpp's sdist is not in the cache folder: build spac first, which fetches it")
    return found


def pack_source(to: Path) -> None:
    """Pack the part of llama.cpp's source that the build reads."""
    skipped = tuple(f"ggml/src/ggml-{name}/" for name in UNUSED)
    with tarfile.open(to, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for name, content in source.llama_source.files_of_sdist(sdist()):
            if not name.startswith(skipped) and not name.endswith(MEDIA):
                _add(archive, name, content)


def pack_objects(build: Path, to: Path) -> None:
    """Pack compiled ggml-cuda, and compile it now if need be: the files that patches do not touch, and the
    rest as patched and as published. spac's own kernels go beside the patched ones."""
    words = ["ninja", "-C", str(build), "ggml-cuda", "spac-reference-ggml-cuda", "spac-cuda"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"{build} does not build: {done.stdout.strip()[-300:]}{done.stderr.strip()[-300:]}")
    trees = [build / "llama.cpp" / name for name in ("patched", "pristine")]
    mine = source.published(*source.patched_names()) if source.sdist() else {}
    patched = source.patched(mine) if mine else {}
    for tree, texts in zip(trees, (patched, mine), strict=True):
        for changed, text in texts.items():
            if not (tree / changed).is_file() or (tree / changed).read_text() != text:
                raise PackError(
                    f"{build} is a build of other patches: run `cmake -B {build}` and ninja again"
                )
    cudart = _cudart(build)
    published = {path.relative_to(build / PUBLISHED) for path in (build / PUBLISHED).rglob("*.o")}
    if not published:
        raise PackError(f"{build} has no unpatched objects: configure it with -DSPAC_BUILD_REFERENCE=ON")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        folder = Path(scratch)
        jobs = []
        tops = {build / OBJECTS: "common", build / PUBLISHED: "published", build / OWN: "patched"}
        for top, kind in tops.items():
            for path in sorted(top.rglob("*.o")):
                name = path.relative_to(top)
                place = folder / ("patched" if kind == "common" and name in published else kind)
                place.mkdir(exist_ok=True)
                jobs.append(pool.submit(prune, path, place / name.name))
        for job in jobs:
            job.result()
        shutil.copy(cudart, folder / "libcudart_static.a")
        (folder / "source_id").write_text(source_id(*trees) + "\n")
        (folder / "capability").write_text(_architectures(build) + "\n")
        unfinished = to.with_suffix(".tmp")
        with tarfile.open(unfinished, "w:xz", preset=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(folder).as_posix())
        unfinished.replace(to)


def split(archive: Path, to: Path) -> None:
    """Copy an archive in parts that are small enough to be brought back from a machine."""
    content = archive.read_bytes()
    for i, start in enumerate(range(0, len(content), PART)):
        (to / f"{archive.name}.{i}").write_bytes(content[start : start + PART])


def join(parts: Path, archive: Path) -> None:
    """Join the parts of an archive. Do nothing where there are no parts."""
    found = sorted(parts.glob(f"{archive.name}.*"))
    if found:
        archive.write_bytes(b"".join(path.read_bytes() for path in found))


def _cache(build: Path, name: str) -> str:
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition("=")[2]
    return ""


def _architectures(build: Path) -> str:
    """Return the objects' architecture: a compute capability without its dot."""
    found = _cache(build, "SPAC_CUDA_ARCHITECTURES").removesuffix("-real")
    if not found.isdigit():
        raise PackError(f"{build}: one architecture is packed, not '{found}'")
    return found


def _cudart(build: Path) -> Path:
    found = Path(_cache(build, "CUDA_cudart_static_LIBRARY") or "libcudart_static.a")
    if not found.is_file():
        raise PackError(f"{build}: libcudart_static.a is not where its configuration says")
    return found


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def pack_wheels(folder: Path) -> None:
    """Pack the modules that the suite imports for every Python of `PYTHONS`. pip fetches those that are not
    there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in (*NEEDED.values(), "ninja") if name not in (*TOO_LARGE, "llama_cpp_python")]
    for name in names:
        for version in PYTHONS if name in BINARY else PYTHONS[:1]:
            _download(name, version, folder)
    with tarfile.open(sdist()) as archive:
        prefix = archive.getnames()[0].split("/")[0]
        wheel = f"llama_cpp_python-{prefix.rpartition('-')[2]}-py3-none-any.whl"
        with zipfile.ZipFile(folder / wheel, "w", zipfile.ZIP_DEFLATED) as half:
            for member in archive:
                inside = member.name.removeprefix(f"{prefix}/")
                if inside.startswith("llama_cpp/") and inside.endswith(".py"):
                    content = archive.extractfile(member)
                    assert content is not None
                    half.writestr(inside, content.read())


def _download(name: str, version: str, folder: Path) -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += [
        "--only-binary=:all:",
        "--python-version",
        version,
        "--implementation",
        "cp",
        "--dest",
        str(folder),
    ]
    for glibc in ("2_28", "2_17", "2014"):
        words += ["--platform", f"manylinux{'' if glibc == '2014' else '_'}{glibc}_x86_64"]
    done = subprocess.run([*words, name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"pip could not fetch {name} for Python {version}: {done.stderr.strip()[-200:]}")


def tree_bytes() -> int:
    """Return the bytes of the files that travel with the tree: those that git knows, and those that it does
    not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sum((ROOT / name).stat().st_size for name in listed if name and (ROOT / name).is_file())


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def commit() -> str:
    """Return the tree's commit, and a hash of what differs from it."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    name = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    return name + (f"+{hashlib.sha256(changes).hexdigest()[:7]}" if changes else "")


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "carry")
    parser.add_argument(
        "--cuda-build", type=Path, help="take ggml-cuda's objects along from this build folder"
    )
    parser.add_argument("--results", type=Path, help="OUT of the session before, to go on from")
    args = parser.parse_args(argv)
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pack_source(folder / "source.tar.xz")
        pack_wheels(folder / "wheels")
        if args.cuda_build:
            pack_objects(args.cuda_build.resolve(), folder / "cuda.tar.xz")
        if args.results:
            shutil.copy(args.results / "state.tar.gz", folder / "state.tar.gz")
            join(args.results, folder / "cuda.tar.xz")
        (folder / "commit").write_text(commit() + "\n")
    except (PackError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    total = tree_bytes() + folder_bytes(folder)
    for path in sorted(folder.iterdir()):
        size = folder_bytes(path) if path.is_dir() else path.stat().st_size
        print(f"{path.name:<16} {size / 1e6:6.1f} MB")
    print(f"{'with the tree':<16} {total / 1e6:6.1f} MB of {LIMIT / 1e6:.1f}")
    if total > LIMIT:
        print("error: that is more than may travel: leave something behind", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
