"""Read the pinned llama.cpp source, as published and as patched, from the sdist in the build's cache."""

from __future__ import annotations

import os
import sys
import tarfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))

import llama_source  # noqa: E402
import unified_diff  # noqa: E402


@cache
def sdist() -> Path | None:
    """Return the sdist of the pin, if a build on this machine has fetched it. Nothing is fetched here."""
    version, sha256 = llama_source.read_pin(ROOT / "LLAMA_CPP_VERSION")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spac"
    file = folder / f"llama_cpp_python-{version}.tar.gz"
    return file if file.is_file() and llama_source.sha256_of(file) == sha256 else None


def patches() -> list[Path]:
    return sorted((ROOT / "patches").glob("*.patch"))


def patched_names() -> list[str]:
    """Return the files that the patches change."""
    lines = [line for patch in patches() for line in patch.read_text().splitlines()]
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def published(*names: str) -> dict[str, str]:
    """Return the texts of these files of llama.cpp."""
    file = sdist()
    assert file is not None
    wanted = set(names)
    found = {}
    with tarfile.open(file) as archive:
        for member in archive:
            _, inside, name = member.name.partition(f"/{llama_source.INSIDE_SDIST}")
            if inside and name in wanted:
                content = archive.extractfile(member)
                assert content is not None
                found[name] = content.read().decode()
                if len(found) == len(wanted):
                    break
    return found


def patched(texts: dict[str, str]) -> dict[str, str]:
    """Return `texts` with all patches applied. It must hold every file that they change."""
    result = dict(texts)
    for patch in patches():
        result.update(unified_diff.apply_patch(patch.read_text(), result.__getitem__))
    return result
