"""The shared library and the module show only their own symbols to the dynamic loader."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spac import _library

SHOWN = re.compile(r"(llama|ggml|gguf|mtmd)_\w+$|_Z(T[ISVT])?N?K?4spac")


def tool(*command: str | Path) -> str:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(path: Path, kind: str) -> set[str]:
    """Return a dynamic symbol table's names without versions. `kind`: "--defined-only",
    "--undefined-only"."""
    return {line.split()[-1].split("@")[0] for line in tool("nm", "-D", kind, path).splitlines()}


def dynamic(path: Path, tag: str) -> list[str]:
    return re.findall(rf"\({tag}\).*\[(.+)\]", tool("readelf", "-d", path))


def core_path() -> Path:
    from spac import _core

    return Path(_core.__file__)


def test_the_library_shows_llama_ggml_and_spac_only():
    names = symbols(_library.library_path(), "--defined-only")
    assert {"llama_decode", "ggml_backend_dev_count", "gguf_init_from_file"} <= names
    assert not {name for name in names if not SHOWN.match(name)}


def test_common_is_inside_the_library_and_nowhere_else():
    for path in (_library.library_path(), core_path()):
        for kind in ("--defined-only", "--undefined-only"):
            assert not {name for name in symbols(path, kind) if re.match(r"_ZN?K?\d+common_", name)}


def test_the_module_uses_spac_only():
    """The module reaches llama.cpp through spac's C++ alone. A C name could be another library's."""
    names = symbols(core_path(), "--undefined-only")
    assert any("4spac" in name for name in names)
    assert not {name for name in names if re.match(r"(llama|ggml|gguf)_", name)}


def test_names_that_the_loader_matches():
    assert dynamic(_library.library_path(), "SONAME") == ["libspac-llama.so"]
    needed = dynamic(core_path(), "NEEDED")
    assert "libspac-llama.so" in needed
    assert not [name for name in needed if name.startswith(("libllama", "libggml"))]
    assert not [
        name for name in dynamic(_library.library_path(), "NEEDED") if re.match("lib(llama|ggml|gomp)", name)
    ]
    assert "SYMBOLIC" in tool("readelf", "-d", _library.library_path())
