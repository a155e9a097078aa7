"""Checks of the installation: versions, the library, folders and extras."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
from collections.abc import Iterator

from spac import __version__, env
from spac.doctor.trial import Finding
from spac.errors import one_line

EXTRAS = {
    "chat": ("prompt_toolkit", "rich"),
    "server": (
        "fastapi",
        "uvicorn",
        "sse_starlette",
        "starlette_context",
        "pydantic_settings",
        "prometheus_client",
        "markdown_it",
        "pygments",
    ),
    "hf": ("huggingface_hub",),
    "ray": ("ray",),
}
"""The modules behind the optional parts, by the name of their extra."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def python() -> Iterator[Finding]:
    """Yield the versions of spac, Python and the system."""
    yield Finding("spac", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")


def library() -> Iterator[Finding]:
    """Yield the library that is loaded, and the versions in it."""
    from spac import _core, _library

    pin, path = _core.llama_cpp_python_version, _library.library_path()
    variant = f"variant {path.parent.name} for this CPU, " if path.parent.name in _library.VARIANTS else ""
    yield Finding("library", "ok", f"{path}, {variant}of llama-cpp-python {pin}, ggml {_core.ggml_version()}")


def llama_cpp_python() -> Iterator[Finding]:
    """Yield the version of llama-cpp-python, or why it cannot be used."""
    name = "llama-cpp-python"
    is_there = importlib.machinery.PathFinder.find_spec("llama_cpp") is not None
    try:
        import llama_cpp
    except ImportError as error:  # its message has the remedy
        why = one_line(str(error))
        if is_there:
            yield Finding(name, "fault", "not usable", why)
        else:
            yield Finding(name, "off", "no", f"spac serve, spac exec and spac.Llama need it: {why}")
        return
    yield Finding(name, "ok", f"{llama_cpp.__version__}, on spac's library")


def folders() -> Iterator[Finding]:
    """Yield the folders that keep things between runs."""
    for name, folder in (("cache", env.cache_folder()), ("state", env.state_folder())):
        near = next(part for part in (folder, *folder.parents) if part.exists())
        fine = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
        why = "" if fine else f"{near} cannot be written: nothing is kept between runs"
        yield Finding(name, "ok" if fine else "off", str(folder), why)


def extras() -> Iterator[Finding]:
    """Yield the optional parts, and what is missing for them."""
    for extra in EXTRAS:
        missing = missing_modules(extra)
        why = f"not installed: {', '.join(missing)}; run `pip install 'spac[{extra}]'`" if missing else ""
        yield Finding(f"extra-{extra}", "off" if missing else "ok", "no" if missing else "installed", why)
