"""Find the unpatched library that the tests compare with."""

from __future__ import annotations

from pathlib import Path

from spac import _library, env


def reference_folder() -> Path | None:
    """Return the folder of an unpatched libllama.so of the same pin, or None. The environment names it, or a
    build with -DSPAC_BUILD_REFERENCE=ON has put it beside spac's library."""
    named = env.REFERENCE_LIB.get()
    folder = named if named is not None else _library.library_path().parent / "reference"
    return folder if (folder / "libllama.so").is_file() else None
