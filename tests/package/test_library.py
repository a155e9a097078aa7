"""All modules of a process use one llama.cpp, even if others are loaded, or there is a one-line error."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spac import _library

# This prints, one a line, the addresses of llama_decode that llama_cpp's handle and spac._core have, and the
# files called libllama.so in the process.
REPORT = """
import ctypes
import spac._core, llama_cpp
print(ctypes.cast(llama_cpp.llama_cpp._lib.llama_decode, ctypes.c_void_p).value)
print(spac._core.llama_decode_address())
for path in sorted({line.split()[-1] for line in open("/proc/self/maps") if "/libllama.so" in line}):
    print(path)
"""


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a separate process, which sees the spac that this one sees."""
    env = {name: value for name, value in os.environ.items() if name != "LLAMA_CPP_LIB_PATH"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**env, **variables}, capture_output=True, text=True, timeout=120
    )


def import_error(code: str, **variables: str) -> str:
    done = run(code, **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith("ImportError: "), done.stderr
    return last


@pytest.mark.parametrize("given", ["", "8"])
def test_streams_get_hardware_queues_of_their_own(given: str) -> None:
    """CUDA reads the variable when its first call is made, which the library does."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    before = f"os.environ['{name}'] = '{given}'" if given else f"os.environ.pop('{name}', None)"
    done = run(f"import os; {before}; import spac._core; print(os.environ['{name}'])")
    assert done.stdout.strip() == (given or "32")


@pytest.mark.parametrize(
    "first",
    ["import spac._core", "import spac; import llama_cpp", "import spac; from llama_cpp import mtmd_cpp"],
)
def test_llama_cpp_and_core_share_one_library(first):
    done = run(first + REPORT)
    assert done.returncode == 0, done.stderr
    from_llama_cpp, from_core, *files = done.stdout.splitlines()
    assert from_llama_cpp == from_core
    assert files == [str(_library.library_path().resolve())]


def test_another_libllama_loaded_globally_changes_nothing(reference_lib):
    other = f"import ctypes; ctypes.CDLL({str(reference_lib / 'libllama.so')!r}, mode=ctypes.RTLD_GLOBAL)"
    done = run(other + REPORT)
    assert done.returncode == 0, done.stderr
    from_llama_cpp, from_core, *files = done.stdout.splitlines()
    assert from_llama_cpp == from_core
    assert len(files) == 2  # the other library is loaded, but no module uses it


def test_llama_cpp_on_another_library_is_refused(reference_lib):
    code = "import llama_cpp, spac; import spac._core"
    assert "import spac before llama_cpp" in import_error(code, LLAMA_CPP_LIB_PATH=str(reference_lib))


def test_another_version_of_llama_cpp_is_refused(tmp_path):
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    line = import_error("import spac, llama_cpp", PYTHONPATH=path)
    assert "llama-cpp-python 0.0.1 is installed" in line
    assert "pip install" in line
    assert "fresh environment" in line


def test_a_missing_llama_cpp_is_named():
    with pytest.raises(ImportError, match="llama-cpp-python is not installed: run `CMAKE_ARGS"):
        _library.find_llama_cpp([])


@pytest.mark.parametrize("module", sorted(_library.REFUSED))
def test_modules_that_need_further_libraries_say_so(module):
    assert "supported" in import_error(f"import spac; import {module}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("libneeded.so.7", ""),
        ("libcublas.so.12", ": install it, for example with `pip install 'nvidia-cublas-cu12'`"),
        ("libcublasLt.so.13", ": install it, for example with `pip install 'nvidia-cublas==13.*'`"),
    ],
)
def test_a_missing_shared_library_is_named(tmp_path, monkeypatch, name, remedy):
    monkeypatch.setattr("sys.path", [])  # no package has it
    needed, library = tmp_path / name, tmp_path / "libllama.so"
    if (compiler := shutil.which(os.environ.get("CC", "cc"))) is None:
        pytest.skip("no C compiler here")
    common = [compiler, "-shared", "-Wl,--no-as-needed", "-xc", "/dev/null", "-xnone"]
    for output, link in ((needed, f"-Wl,-soname,{name}"), (library, needed)):
        subprocess.run([*common, link, "-o", output], check=True)
    needed.unlink()
    with pytest.raises(ImportError) as refused:
        _library._open(library)
    assert str(refused.value) == f"spac's library needs {name}, which is not on this machine{remedy}"


def test_the_library_takes_its_own_functions():
    """A call inside the library reaches the library. dlsym on our handle and the library's own view agree."""
    from spac import _core

    handle = ctypes.CDLL(str(_library.library_path()))
    assert ctypes.cast(handle.llama_decode, ctypes.c_void_p).value == _core.llama_decode_address()


# The shared library and the module show only their own symbols to the dynamic loader.


SHOWN = re.compile(r"(llama|ggml|gguf|mtmd)_\w+$|_Z(T[ISVT])?N?K?4spac|_Z\d+llama_[gs]et_")


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
