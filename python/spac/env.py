"""Every environment variable that spac reads or sets, each once: what it is for, what it accepts, and its
default.

The settings of a run are options of the programs and fields of their configuration; what is here concerns
the process, the machine, or tests.
"""

from __future__ import annotations

import os
from pathlib import Path

from spac.errors import InputError

LIB_PATH = "LLAMA_CPP_LIB_PATH"
"""llama-cpp-python's: the folder that it takes libllama.so from. spac sets it to its own library's folder
when it loads that; a value from outside is not read."""

REFERENCE_LIB = "SPAC_REFERENCE_LIB"
"""For tests: the folder of an unpatched libllama.so to compare with. Not set: lib/reference beside spac's
module, which a build with -DSPAC_BUILD_REFERENCE=ON makes."""

STAND_IN = "SPAC_STAND_IN"
"""How the stand-in device behaves, for tests and for seeing what a slow link does: `name=value` pairs with commas
between them, such as "upload_gb_s=4,latency_us=10,memory_mb=64". Not set: as fast as memory, half of the host's."""

STAND_IN_SETTINGS: dict[str, type[int] | type[float]] = {
    "upload_gb_s": float,
    "latency_us": float,
    "delay_us": float,
    "memory_mb": int,
    "fail_uploads": int,
    "n_threads": int,
}


def stand_in() -> dict[str, int | float]:
    """The settings that SPAC_STAND_IN names, as arguments of `_core.set_stand_in`; empty when it is not
    set."""
    settings: dict[str, int | float] = {}
    for pair in filter(None, os.environ.get(STAND_IN, "").split(",")):
        name, _, value = pair.partition("=")
        try:
            number = STAND_IN_SETTINGS[name.strip()](value)
            if not 0 <= number < float("inf"):
                raise ValueError
        except (KeyError, ValueError):
            known = ", ".join(STAND_IN_SETTINGS)
            raise InputError(f"{STAND_IN}: '{pair}' is not name=number with a name of {known}") from None
        settings[name.strip()] = number
    return settings


def reference_lib() -> Path | None:
    """The folder that SPAC_REFERENCE_LIB names; None when it is not set."""
    folder = os.environ.get(REFERENCE_LIB, "")
    return Path(folder) if folder else None


def set_lib_path(folder: Path) -> None:
    """Make llama-cpp-python take its library from `folder`, in this process and its children."""
    os.environ[LIB_PATH] = str(folder)
