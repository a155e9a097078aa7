"""Provide llama.cpp's source to CMake: fetch the pinned sdist, unpack it, apply our patches.

    python llama_source.py --pin FILE --patches FOLDER --build FOLDER [--local FOLDER]

The program makes two trees in the build folder, `pristine` (as published) and `patched`. It prints the
patched files, one a line, for the reference build. Files whose content did not change keep their time stamp.
So an edit of a patch recompiles only the files that it touches. The program runs before anything is built.
It needs the standard library only, neither `patch` nor `git`.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from unified_diff import PatchError, apply_patch

# The build reads these parts of llama.cpp. The sdist's rest (other tools, tests, web pages) stays packed.
WANTED = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "common",
    "ggml",
    "include",
    "licenses",
    "src",
    "tools/mtmd",
    "tools/server",
    "vendor",
)
INSIDE_SDIST = "vendor/llama.cpp/"


class SourceError(Exception):
    """The source is not available. The message says what to do."""


def read_pin(path: Path) -> tuple[str, str]:
    """Return the pinned version of llama-cpp-python and the sha256 of its sdist."""
    fields = dict(
        line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")
    )
    return fields["version"], fields["sha256"]


def cache_folder(build: Path) -> Path:
    """Return the user's cache folder, or one in the build folder if the user's cannot be written."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "spac"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        folder = build / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_sdist(version: str, sha256: str, cache: Path) -> Path:
    """Return the path of the pinned sdist in the cache.

    pip downloads it if it is not there yet. Its hash is always checked.
    """
    sdist = cache / f"llama_cpp_python-{version}.tar.gz"
    if sdist.is_file() and sha256_of(sdist) == sha256:
        return sdist
    print(f"fetching llama-cpp-python {version} (llama.cpp's source) with pip", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        try:
            found = download_sdist(version, Path(folder))
        except SourceError as fault:
            raise SourceError(
                f"{fault}; "
                "check the network, or name a llama.cpp tree of that version with -DSPAC_LLAMA_CPP_DIR=FOLDER"
            ) from None
        actual = sha256_of(found)
        if actual != sha256:
            raise SourceError(
                f"the downloaded {found.name} has sha256 {actual}, LLAMA_CPP_VERSION says {sha256}"
            )
        os.replace(found, sdist)
    return sdist


def download_sdist(version: str, folder: Path) -> Path:
    """Download a version's sdist into an empty folder with pip, and return its path. Raise SourceError."""
    requirement = f"llama-cpp-python=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder), requirement]
    # The output is captured, because Python's warnings in it would read like our own.
    done = subprocess.run(command, capture_output=True, text=True)
    found = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(found) != 1:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SourceError(f"pip could not download {requirement}: {last}")
    return found[0]


def files_of_sdist(sdist: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, _, path = member.name.partition("/")
            if not member.isfile() or not path.startswith(INSIDE_SDIST):
                continue
            path = path.removeprefix(INSIDE_SDIST)
            if any(path == name or path.startswith(f"{name}/") for name in WANTED):
                content = archive.extractfile(member)
                assert content is not None
                yield path, content.read()


def files_of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not (folder / "ggml" / "CMakeLists.txt").is_file():
        raise SourceError(
            f"SPAC_LLAMA_CPP_DIR={folder} is not a llama.cpp tree (no ggml/CMakeLists.txt in it)"
        )
    for name in WANTED:
        top = folder / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def write_if_changed(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def unpack(files: Iterator[tuple[str, bytes]], pristine: Path) -> None:
    """Make `pristine` hold exactly these files."""
    wanted = set()
    for name, content in files:
        wanted.add(name)
        write_if_changed(pristine / name, content)
    for path in list(pristine.rglob("*")):
        if path.is_file() and path.relative_to(pristine).as_posix() not in wanted:
            path.unlink()


def mirror(pristine: Path, patched: Path, changed: dict[str, str]) -> None:
    """Make `patched` equal to `pristine`, except for the files in `changed`."""
    names = {path.relative_to(pristine).as_posix() for path in pristine.rglob("*") if path.is_file()}
    for name in sorted(names | changed.keys()):
        source, target = pristine / name, patched / name
        if name in changed:
            write_if_changed(target, changed[name].encode())
        elif not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for path in list(patched.rglob("*")):
        if path.is_file() and path.relative_to(patched).as_posix() not in names | changed.keys():
            path.unlink()


def apply_patches(patches: Path, pristine: Path) -> dict[str, str]:
    """Apply all patches in the order of their numbers. Return the new content of every changed file."""
    changed: dict[str, str] = {}

    def read(name: str) -> str:
        return changed[name] if name in changed else (pristine / name).read_text(encoding="utf-8")

    for patch in sorted(patches.glob("*.patch")):
        try:
            changed.update(apply_patch(patch.read_text(encoding="utf-8"), read))
        except (PatchError, OSError) as error:
            raise SourceError(
                f"patches/{patch.name} does not apply: {error}; "
                "make it anew against the pinned source (patches/README.md tells how)"
            ) from None
    return changed


def provide(pin: Path, patches: Path, build: Path, local: Path | None) -> list[str]:
    """Bring both trees in `build` up to date. Return the names of the patched files."""
    pristine, patched, stamp = build / "pristine", build / "patched", build / "pristine.stamp"
    version, sha256 = read_pin(pin)
    unpacked = f"{sha256} {' '.join(WANTED)}"
    if local:
        stamp.unlink(missing_ok=True)
        unpack(files_of_folder(local), pristine)
    elif not (stamp.is_file() and stamp.read_text() == unpacked):
        stamp.unlink(missing_ok=True)
        unpack(files_of_sdist(fetch_sdist(version, sha256, cache_folder(build))), pristine)
        stamp.write_text(unpacked)
    changed = apply_patches(patches, pristine)
    mirror(pristine, patched, changed)
    return sorted(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pin", type=Path, required=True, help="the file LLAMA_CPP_VERSION")
    parser.add_argument("--patches", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True, help="where both trees go")
    parser.add_argument("--local", type=Path, help="a llama.cpp tree to use in place of the pinned sdist")
    args = parser.parse_args()
    args.build.mkdir(parents=True, exist_ok=True)
    try:
        print("\n".join(provide(args.pin, args.patches, args.build, args.local)))
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
