"""Load spac's shared library for `spac._core` and for llama_cpp, llama-cpp-python's Python half.

`install()` puts a finder in front of Python's import system. The finder loads the library before the first
import of `spac._core` or `llama_cpp`. So both find the library that is already in the process. Every failure
is an ImportError of one line.
"""

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from spac import env
from spac.errors import InputError

# These modules of llama_cpp load further libraries, which have a llama.cpp of their own.
REFUSED = {
    "llama_cpp.llava_cpp": "llama_cpp.llava_cpp is not supported: llama_cpp.mtmd_cpp has taken its place",
    "llama_cpp._ggml": "llama_cpp._ggml is not supported: spac's library has ggml inside, not beside it",
}
VARIANTS = {
    "avx512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw", "avx512_vnni"),
    "avx2": ("avx", "avx2", "fma", "f16c", "bmi2"),
    "baseline": ("sse4_2",),
}
"""The CPU flags that each variant of a wheel's library needs beside those of the later ones; best first."""
STREAMS = "32"
"""The hardware queues of a CUDA card, for CUDA_DEVICE_MAX_CONNECTIONS: as many as it can have.

With CUDA's default of 8, a stream that waits at a gate may share its queue with another stream, whose work
then waits too. A context of spac's has up to eleven streams.
"""
_handle: ctypes.CDLL | None = None

after_llama_cpp: list[Callable[[], None]] = []
"""Functions to call when an import of llama_cpp ends. That import takes the library's log."""


def library_path() -> Path:
    """Return the path of libllama.so in the folder lib beside the module spac._core.

    An editable install has that module in site-packages and this file in the source tree. A wheel has
    variants of the library, each in a folder of its own. Raise ImportError if the module is missing, or if
    this CPU can run no variant.
    """
    package = sys.modules["spac"].__path__
    # Our finder is left out, because it calls this function.
    for finder in sys.meta_path:
        spec = None if isinstance(finder, _Finder) else finder.find_spec("spac._core", package, None)
        if spec is not None and spec.origin is not None:
            lib = Path(spec.origin).parent / "lib"
            return lib / _variant(lib) / "libllama.so"
    raise ImportError(
        "spac is not built: its module spac._core is missing; run `pip install .` in its source tree"
    )


def _variant(lib: Path) -> str:
    """Return the folder of the best variant of the library for this CPU; "" if there is one library."""
    built = [name for name in VARIANTS if (lib / name).is_dir()]
    try:
        named = env.CPU_VARIANT.get()
    except InputError as error:
        raise ImportError(str(error)) from None
    if not built:
        return ""
    if named is not None and named not in built:
        raise ImportError(f"{env.CPU_VARIANT.name}={named}: this installation has {', '.join(built)}")
    for name in built if named is None else [named]:
        if not (missing := lacking(name)):
            return name
    raise ImportError(
        f"this CPU lacks {', '.join(missing)}: build spac from its source tree (docs/install.md)"
    )


def lacking(variant: str) -> list[str]:
    """Return the instruction sets that a variant needs and this CPU lacks."""
    from spac.machine.cpu import cpu_flags

    names = list(VARIANTS)
    flags = cpu_flags()
    return [each for name in names[names.index(variant) :] for each in VARIANTS[name] if each not in flags]


def load() -> Path:
    """Load the library once, point llama_cpp at it, and return its path.

    Raise ImportError, in one line, if the library is missing or cannot be loaded, or if llama_cpp is already
    loaded on another library.
    """
    global _handle
    path = library_path()
    if _handle is None:
        _refuse_other_library(path)
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", STREAMS)  # The driver reads it once.
        _handle = _open(path)
        os.environ[env.LIB_PATH.name] = str(path.parent)
    return path


def _open(path: Path) -> ctypes.CDLL:
    """Load the library at `path`, and take missing shared libraries (cuBLAS) from Python packages."""
    tried: set[str] = set()
    while True:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            match = re.match(r"(\S+\.so[.\d]*): cannot open shared object file", str(error))
            missing = match[1] if match else ""
            if not missing or os.path.sep in missing or missing in tried:
                raise ImportError(f"spac's library cannot be loaded: {error}") from None
            tried.add(missing)
            found = _in_packages(missing)
            if found is None:
                cublas = re.match(r"libcublas(?:Lt)?\.so\.(\d+)", missing)
                package = cublas_package(int(cublas[1])) if cublas else ""
                remedy = f": install it, for example with `pip install '{package}'`" if package else ""
                raise ImportError(
                    f"spac's library needs {missing}, which is not on this machine{remedy}"
                ) from None
            ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)


def cublas_package(major: int) -> str:
    """Return the requirement for NVIDIA's package of cuBLAS, for a major version of CUDA from 12 on."""
    return f"nvidia-cublas-cu{major}" if major < 13 else f"nvidia-cublas=={major}.*"


def _in_packages(name: str) -> Path | None:
    """Return the file `name` of a lib folder of NVIDIA's Python packages (nvidia/<package>/lib), or None."""
    for folder in sys.path:
        for found in Path(folder or ".").glob(f"nvidia/*/lib/{name}"):
            return found
    return None


def _refuse_other_library(path: Path) -> None:
    """Raise ImportError if llama_cpp was imported before spac and loaded another file."""
    module = sys.modules.get("llama_cpp.llama_cpp")
    if module is None:
        return
    loaded = str(getattr(getattr(module, "_lib", None), "_name", ""))
    if not (os.path.exists(loaded) and os.path.samefile(loaded, path)):
        raise ImportError(
            f"llama_cpp is already loaded on {loaded or 'another library'}: import spac before llama_cpp"
        )


def _version_of(spec: importlib.machinery.ModuleSpec) -> str:
    """Return the version that a llama_cpp package states, without importing it."""
    try:
        text = Path(spec.origin or "").read_text(encoding="utf-8")
    except OSError:
        return "of unknown version"
    match = re.search(r"""^__version__\s*=\s*["'](.+?)["']""", text, re.MULTILINE)
    return match[1] if match else "of unknown version"


def find_llama_cpp(path: Sequence[str] | None = None) -> importlib.machinery.ModuleSpec:
    """Return the spec of the installed llama_cpp, with a loader that calls `after_llama_cpp` at the end.

    Raise ImportError unless it has the version that the library was built from.
    """
    from spac import _core

    pinned = _core.llama_cpp_python_version
    command = f'CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install "llama-cpp-python=={pinned}"'
    spec = importlib.machinery.PathFinder.find_spec("llama_cpp", path)
    if spec is None:
        raise ImportError(f"llama-cpp-python is not installed: run `{command}`")
    found = _version_of(spec)
    if found != pinned:
        raise ImportError(
            f"llama-cpp-python {found} is installed, but spac runs with {pinned} only: "
            f"run `{command}`, best in a fresh environment"
        )
    loader = spec.loader
    assert loader is not None  # it has a file

    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        execute(module)
        for function in after_llama_cpp:
            function()

    loader.exec_module = execute_and_call  # type: ignore[method-assign]
    return spec


def _lend_to_mtmd(path: Path) -> None:
    """Make `llama_cpp.mtmd_cpp` use spac's library, which has mtmd inside.

    That module looks for a file libmtmd.so of its own, with a function that it imports.
    """
    extensions: Any = importlib.import_module("llama_cpp._ctypes_extensions")
    load_shared_library = extensions.load_shared_library

    def loaded(name: str, folder: Path) -> ctypes.CDLL:
        library: ctypes.CDLL = _open(path) if name == "mtmd" else load_shared_library(name, folder)
        return library

    extensions.load_shared_library = loaded


class _Finder:
    """A meta path finder that loads the library for `spac._core` and llama_cpp. It finds only the latter."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Prepare the import of `name`. Raise ImportError if it must not be imported."""
        if name == "spac._core":
            load()
        elif name == "llama_cpp":
            load()
            return find_llama_cpp(path)
        elif name == "llama_cpp.mtmd_cpp":
            _lend_to_mtmd(load())
        elif name in REFUSED:
            raise ImportError(REFUSED[name])
        return None


def install() -> None:
    """Put the finder in front of the other ones, once. Only that of `spac exec` stays before it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(int(getattr(sys.meta_path[0], "enables_spac", False)), _Finder())
