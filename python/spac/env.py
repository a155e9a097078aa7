"""The environment variables that spac reads or sets, declared once: name, type, default and meaning.

The settings of a run are options of the programs and fields of their configuration. Environment variables
concern the process, the machine, or tests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spac.errors import InputError
from spac.machine.device_memory import SIZES, parse_size


@dataclass(frozen=True)
class Folder:
    """A variable that holds a folder. An empty value counts as not set."""

    name: str
    doc: str

    def get(self) -> Path | None:
        """Return the folder; None if it is not set."""
        value = os.environ.get(self.name, "")
        return Path(value) if value else None

    def set(self, folder: Path) -> None:
        """Set the variable for this process and its children."""
        os.environ[self.name] = str(folder)


@dataclass(frozen=True)
class Text:
    """A variable that holds any text. An empty value counts as not set."""

    name: str
    doc: str

    def get(self) -> str:
        """Return the text; "" if it is not set."""
        return os.environ.get(self.name, "")


@dataclass(frozen=True)
class Pairs:
    """A variable that holds `name=value` pairs, separated by commas. `known` has their names and types."""

    name: str
    known: dict[str, type[int] | type[float] | type[str]]
    doc: str
    former: str = ""
    """The variable's former name, which is read if the variable is not set."""

    def get(self) -> dict[str, Any]:
        """Return the pairs; none if the variable is not set.

        Raise InputError for an unknown name, and for a number that is not finite or less than 0.
        """
        pairs: dict[str, Any] = {}
        text = os.environ.get(self.name) or os.environ.get(self.former, "")
        for pair in filter(None, text.split(",")):
            key, _, value = (part.strip() for part in pair.partition("="))
            try:
                pairs[key] = self.known[key](value)
                if self.known[key] is not str and not 0 <= pairs[key] < float("inf"):
                    raise ValueError
            except (KeyError, ValueError):
                names = ", ".join(self.known)
                raise InputError(
                    f"{self.name}: '{pair}' is not valid: write NAME=VALUE with a name of {names}"
                ) from None
        return pairs


@dataclass(frozen=True)
class Switch:
    """A variable that is 1 or 0. An empty value counts as not set."""

    name: str
    doc: str

    def get(self) -> bool | None:
        """Return the value; None if it is not set. Raise InputError for any other value than 0 or 1."""
        value = os.environ.get(self.name, "")
        if value not in ("", "0", "1"):
            raise InputError(f"{self.name}: '{value}' is neither 0 nor 1")
        return None if value == "" else value == "1"


@dataclass(frozen=True)
class Choice:
    """A variable that is one of some words. An empty value counts as not set."""

    name: str
    words: tuple[str, ...]
    doc: str

    def get(self) -> str | None:
        """Return the word; None if it is not set. Raise InputError for any other value."""
        value = os.environ.get(self.name, "")
        if value and value not in self.words:
            raise InputError(f"{self.name}: '{value}' is not one of {', '.join(self.words)}")
        return value or None


@dataclass(frozen=True)
class Number:
    """A variable that is a number from 0 on. An empty value counts as not set."""

    name: str
    doc: str

    def get(self) -> float | None:
        """Return the number; None if it is not set. Raise InputError for any other value."""
        value = os.environ.get(self.name, "")
        if value == "":
            return None
        try:
            number = float(value)
            if not 0 <= number < float("inf"):
                raise ValueError
        except ValueError:
            raise InputError(f"{self.name}: '{value}' is not a number from 0 on") from None
        return number


@dataclass(frozen=True)
class Size:
    """A variable that is a number of bytes, with or without a unit. An empty value counts as not set."""

    name: str
    doc: str

    def get(self) -> int | None:
        """Return the number of bytes; None if it is not set. Raise InputError for an invalid size."""
        value = os.environ.get(self.name, "").strip()
        n_bytes = int(value) if value.isdecimal() else parse_size(value)
        if value and n_bytes is None:
            raise InputError(f"{self.name}: '{value}' is not {SIZES}")
        return n_bytes


LIB_PATH = Folder(
    "LLAMA_CPP_LIB_PATH",
    "llama-cpp-python's: the folder that it takes libllama.so from. spac sets it to its own library's folder "
    "when it loads that; a value from outside is not read.",
)
REFERENCE_LIB = Folder(
    "SPAC_REFERENCE_LIB",
    "For tests: the folder of an unpatched libllama.so to compare with. Not set: lib/reference beside spac's "
    "module, which a build with -DSPAC_BUILD_REFERENCE=ON makes.",
)
FUZZ = Pairs(
    "SPAC_FUZZ",
    {"factor": float},
    "For tests: how many times as many random inputs the fuzz tests try, other ones in every run. Not set: "
    "as many as fit a minute, always the same.",
)
SIMULATED_DEVICE = Pairs(
    "SPAC_SIMULATED_DEVICE",
    {
        "upload_gb_s": float,
        "latency_us": float,
        "delay_us": float,
        "memory_mb": int,
        "fail_uploads": int,
        "n_threads": int,
        "spin_us": float,
        "pin_limit_mb": int,
        "fault": str,
    },
    "How the simulated device behaves, for tests and for seeing what a slow link does, such as "
    '"upload_gb_s=4,latency_us=10,memory_mb=64". The names are those of _core.set_simulated_device. Not set: '
    "as fast as memory, half of the host's.",
    former="SPAC_STAND_IN",
)
LAUNCH_AHEAD = Switch(
    "SPAC_LAUNCH_AHEAD",
    "Whether what follows the CPU's part of a layer is queued on the device before the CPU has done it, "
    "where the device can wait for the CPU. Not set: on GPUs, not on the simulated device, which shares the "
    "CPU's cores. 0 is for comparisons, and for drivers on which it fails.",
)
IN_PLACE = Switch(
    "SPAC_IN_PLACE",
    "Whether a layer's ids, input and rows pass between CPU and GPU in pinned memory that kernels read and "
    "write themselves. Without, they are copied, which takes longer. Not set: on CUDA, not on the simulated "
    "device. 0 is for comparisons, and for GPUs on which it fails.",
)
GATE_TIMEOUT = Number(
    "SPAC_GATE_TIMEOUT",
    "How many seconds the CPU waits for a layer that was queued ahead of it. When they have passed, one line "
    "says where, the step fails, and launching ahead is switched off for the later ones. Not set: 20. 0 is "
    "for debuggers: it waits for ever.",
)
LOOKAHEAD = Switch(
    "SPAC_LOOKAHEAD",
    "Whether layers look ahead where --lookahead is not given. Not set: on GPUs, not on the simulated "
    "device.",
)
DEVICE_MASKS = Switch(
    "SPAC_DEVICE_MASKS",
    "Whether the device reads the ids masks itself, a GPU with the patched kernels. Without, the CPU lists "
    "the resident experts, and the device waits. Not set: on CUDA, whose kernels have been tried, and on the "
    "simulated device. 0 is for comparisons, and for GPUs on which bench/gpu_suite fails.",
)
PIN = Switch(
    "SPAC_PIN",
    "Whether the GPU's driver pins experts in host memory (it registers the file's mapping). Without, copies "
    "go through a staging buffer, and prompts are slower. Not set: as far as the driver allows. 0 is for "
    "comparisons, and for drivers on which it fails.",
)
PIN_LIMIT = Size(
    "SPAC_PIN_LIMIT",
    "How much of the experts may be pinned, of all models of the process together, such as 64G; what is more "
    "is treated as with SPAC_PIN=0. Not set: all, and under WSL2, which pins no more, half of the memory.",
)
CPU_KERNELS = Choice(
    "SPAC_CPU_KERNELS",
    ("0", "1", "256", "512"),
    "What the CPU computes with. Not set, and 1: for each type of weights and number of tokens, the fastest "
    "of llama.cpp's functions and spac's kernels of 256 and 512 bits, which is measured once per machine. "
    "256 and 512 fix spac's kernels of that width; 0 fixes llama.cpp's functions. The results are the same.",
)
PIN_THREADS = Switch(
    "SPAC_PIN_THREADS",
    "Whether threads that compute are bound to CPUs: 1 gives each the next best CPU for itself, first "
    "threads of cores first, performance cores before others; 0 leaves it to the system. Not set: with two "
    "kinds of cores or several NUMA nodes, all threads share the best CPUs, as many as there are threads; "
    "elsewhere as 0, because a bound thread waits where another program runs. The thread that decodes is "
    "the application's own, and never bound.",
)
CACHE_HOME = Folder(
    "XDG_CACHE_HOME",
    "The user's folder for what can be made again. Not set: ~/.cache. spac's is spac/ in it.",
)
STATE_HOME = Folder(
    "XDG_STATE_HOME",
    "The user's folder for what programs remember, such as the lines typed into the chat. Not set: "
    "~/.local/state. spac's is spac/ in it.",
)
NO_COLOR = Text(
    "NO_COLOR", "When it is not empty, programs write plain text: no color, no rendered Markdown."
)
API_KEY = Text("SPAC_API_KEY", "The key that clients of the server must send; --api-key goes before it.")


def cache_folder() -> Path:
    """Return spac's folder for files that can be made again. It may not exist yet."""
    return (CACHE_HOME.get() or Path.home() / ".cache") / "spac"


def state_folder() -> Path:
    """Return spac's folder for files that programs remember things in. It may not exist yet."""
    return (STATE_HOME.get() or Path.home() / ".local" / "state") / "spac"
