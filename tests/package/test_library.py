"""All modules of a process use one llama.cpp, even if others are loaded, or there is a one-line error."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spac
from spac import _library
from spac.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

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
    """Return the one line of the ImportError that the code ends with."""
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


@pytest.mark.parametrize("first", ["import spac._core", "import spac; import llama_cpp"])
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


def test_mtmd_is_in_the_same_library():
    done = run("import spac; from llama_cpp import mtmd_cpp; print(mtmd_cpp._libmtmd._name)" + REPORT)
    assert done.returncode == 0, done.stderr
    loaded, *_, last = done.stdout.splitlines()
    assert loaded == last == str(_library.library_path().resolve())


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
    compiler = os.environ.get("CC", "cc")
    needed, library = tmp_path / name, tmp_path / "libllama.so"
    try:
        for output, link in ((needed, [f"-Wl,-soname,{name}"]), (library, [str(needed)])):
            subprocess.run(
                [
                    compiler,
                    "-shared",
                    "-Wl,--no-as-needed",
                    "-xc",
                    "/dev/null",
                    "-xnone",
                    *link,
                    "-o",
                    output,
                ],
                check=True,
            )
    except OSError:
        pytest.skip("no C compiler here")
    needed.unlink()
    with pytest.raises(ImportError) as refused:
        _library._open(library)
    assert str(refused.value) == f"spac's library needs {name}, which is not on this machine{remedy}"


def test_versions():
    from spac import _core

    assert _core.__version__ == spac.__version__
    assert f"version {_core.llama_cpp_python_version}\n" in (ROOT / "LLAMA_CPP_VERSION").read_text()


def test_errors_of_the_library_arrive_as_ours():
    from spac import _core

    with pytest.raises(InputError):
        _core.device_handle("no such device")


def test_the_library_takes_its_own_functions():
    """A call inside the library reaches the library. dlsym on our handle and the library's own view agree."""
    from spac import _core

    handle = ctypes.CDLL(str(_library.library_path()))
    assert ctypes.cast(handle.llama_decode, ctypes.c_void_p).value == _core.llama_decode_address()
