"""The environment variables that spac reads or sets, declared once: name, meaning and form.

The settings of a run are options of the programs and fields of their configuration. Environment variables
concern the process, the machine, debugging and tests. docs/options.md has the table of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from spac.errors import InputError
from spac.machine.device_memory import SIZES, parse_size

Value = TypeVar("Value")


@dataclass(frozen=True)
class Variable(Generic[Value]):
    """A variable. `parse` makes its value from the text, and raises ValueError for an invalid one."""

    name: str
    doc: str
    parse: Callable[[str], Value]

    def get(self) -> Value | None:
        """Return the value; None if the variable is not set, or empty. Raise InputError if it is invalid."""
        text = os.environ.get(self.name, "")
        try:
            return self.parse(text) if text else None
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from None


@dataclass(frozen=True)
class Parts:
    """A variable that switches parts of the mechanism: their names, with commas, "no-" before what is off.

    "safe" switches all parts off. Of words that contradict each other, the last one holds. `known` has the
    parts and their meaning.
    """

    name: str
    doc: str
    known: dict[str, str]

    def get(self, part: str) -> bool | None:
        """Return True if a part, or "safe", is on and False if it is off; None if nothing is said about it.

        Raise InputError for an unknown part.
        """
        found: dict[str, bool] = {}
        for word in filter(None, map(str.strip, os.environ.get(self.name, "").split(","))):
            named = word.removeprefix("no-")
            if named not in self.known and word != "safe":
                raise InputError(
                    f"{self.name}: '{word}' is not valid: write safe, or parts with no- before what is "
                    f"off, of {', '.join(self.known)}"
                )
            found |= dict.fromkeys(self.known, False) if word == "safe" else {}
            found[named] = named == word
        return found.get(part)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"'{text}' is not one of {', '.join(words)}")
        return text

    return parse


def _number(text: str) -> float:
    try:
        if 0 <= (number := float(text)) < float("inf"):
            return number
    except ValueError:
        pass
    raise ValueError(f"'{text}' is not a number from 0 on")


def _size(text: str) -> int:
    n_bytes = int(text) if text.strip().isdecimal() else parse_size(text)
    if n_bytes is None:
        raise ValueError(f"'{text}' is not {SIZES}")
    return n_bytes


_SIMULATED: dict[str, type[int] | type[float] | type[str]] = {
    **dict.fromkeys(("upload_gb_s", "latency_us", "delay_us", "spin_us", "kernel_share"), float),
    **dict.fromkeys(("memory_mb", "fail_uploads", "n_threads", "pin_limit_mb"), int),
    "fault": str,
}
"""The settings of a simulated device, and their types."""


def _devices(text: str) -> list[dict[str, Any]]:
    return [dict(map(_setting, filter(None, map(str.strip, part.split(","))))) for part in text.split(";")]


def _setting(pair: str) -> tuple[str, Any]:
    key, _, value = (part.strip() for part in pair.partition("="))
    try:
        found = _SIMULATED[key](value)
        if isinstance(found, str) or 0 <= found < float("inf"):
            return key, found
    except (KeyError, ValueError):
        pass
    raise ValueError(f"'{pair}' is not valid: write NAME=VALUE with a name of {', '.join(_SIMULATED)}")


API_KEY = Variable(
    "SPAC_API_KEY", "The key that clients of the server must send. `--api-key` takes precedence.", str
)
DEVICE = Variable(
    "SPAC_DEVICE",
    "The device that `--device auto` means, such as CUDA1, simulated or cpu, or several, such as "
    "CUDA0,CUDA1. Not set: all GPUs, or the CPU alone without one.",
    str,
)
FORM = Parts(
    "SPAC_FORM",
    "The form of the split: parts with commas between them, as in `no-ahead,no-masks`. `safe` switches all "
    "of them off, for devices and drivers on which one fails, and layers do not look ahead unless "
    "`--lookahead` says so. If nothing is said about a part, the device decides.",
    {
        "masks": "The device reads the ids masks itself. Without it, the CPU lists the experts in slots, and "
        "the device waits. CUDA, whose kernels have been tried, and the simulated device do this.",
        "ahead": "The work after the CPU's part of a layer is queued on the device before the CPU is done. "
        "GPUs do this. The simulated device does not, because it shares the CPU's cores.",
        "in-place": "A layer's ids, input and rows pass between CPU and GPU in pinned memory, which kernels "
        "read and write themselves. Without it, they are copied, which takes longer. CUDA does this.",
        "pinned": "The driver pins experts in host memory: it registers the file's mapping. Without it, "
        "copies go through a staging buffer, and prompts are slower. All drivers that can do this.",
        "schedule-beside": "The scheduler works on a thread of its own while the next step computes. GPUs do "
        "this where two cores are left beside the threads that compute.",
        "cpu-kernels": "The CPU takes the faster of llama.cpp's functions and spac's kernels, for each type "
        "of weights. This is measured once per machine. Without it, llama.cpp's functions compute. The "
        "results are the same. All CPUs with kernels do this.",
        # No GPU has shown enough of these two to switch them on.
        "early-rows": "While the GPU computes what lies before a layer, the CPU's threads read experts that "
        "the layer will probably leave to them into the processor's caches. Off without a word.",
        "upload-threads": "Threads bring experts that are not pinned to pinned memory: for long prompts "
        "where that is faster than the driver's way, which the first such copy decides, and two threads for "
        "copies beside steps. Off without a word.",
    },
)
GATE_TIMEOUT = Variable(
    "SPAC_GATE_TIMEOUT",
    "The number of seconds that the CPU waits for a layer that was queued ahead of it. After that, one line "
    "says where it waited, the step fails, and later steps do not launch ahead. Not set: 20. 0 waits for "
    "ever, for debuggers.",
    _number,
)
PIN_LIMIT = Variable(
    "SPAC_PIN_LIMIT",
    "The most bytes of experts that may be pinned, of all models of the process together, such as 64G. "
    "Experts beyond it are treated as with `SPAC_FORM=no-pinned`. Not set: all are pinned. Under WSL2, which "
    "pins no more, half of the memory is.",
    _size,
)
RPC_TIMEOUT = Variable(
    "SPAC_RPC_TIMEOUT",
    "The number of seconds for which an RPC server may be silent while something is expected of it: an "
    "answer, or room for more data. After that the connection is lost. The longest such time is that of a "
    "prompt's graph on the server's layers. Not set: 60. 0 waits for ever.",
    _number,
)
SIMULATED_DEVICE = Variable(
    "SPAC_SIMULATED_DEVICE",
    "How the simulated device behaves, for tests and for seeing what a slow link does, such as "
    f"`upload_gb_s=4,latency_us=10,memory_mb=64`. Its settings are {', '.join(_SIMULATED)}. Further devices, "
    "simulated1 and so on, follow after semicolons. Not set: one device, as fast as memory, half of the "
    "host's.",
    _devices,
)
STATE = Variable(
    "SPAC_STATE",
    "For tests and comparisons, `off` keeps nothing of what schedulers learn, where `--state auto` would.",
    _one_of("auto", "off"),
)
CPU_VARIANT = Variable(
    "SPAC_CPU_VARIANT",
    "For tests, `baseline`, `avx2` or `avx512` is the variant of a wheel's library. Not set: the CPU's "
    "instruction sets decide. A build from source has one library, made for its machine.",
    _one_of("baseline", "avx2", "avx512"),
)
EXEC = Variable(
    "SPAC_EXEC",
    "Set by `spac exec` for the program and its child processes: the arguments of `spac.enable()`, as JSON.",
    str,
)
LIB_PATH = Variable(
    "LLAMA_CPP_LIB_PATH",
    "Set for llama-cpp-python when spac loads its own library. A value from outside is not read.",
    Path,
)
CACHE_HOME = Variable(
    "XDG_CACHE_HOME",
    "The user's folder for files that can be made again. spac keeps measured costs in spac/costs there, and "
    "what schedulers learned in spac/states. Not set: ~/.cache.",
    Path,
)
STATE_HOME = Variable(
    "XDG_STATE_HOME",
    "The user's folder for what programs remember, such as the lines typed into the chat. Not set: "
    "~/.local/state.",
    Path,
)
CONFIG_HOME = Variable(
    "XDG_CONFIG_HOME",
    "The user's folder for settings. spac reads the options in spac/config.toml there. Not set: ~/.config.",
    Path,
)
NO_COLOR = Variable("NO_COLOR", "If it is set, programs write no color and no rendered Markdown.", str)


def cache_folder() -> Path:
    """Return spac's folder for files that can be made again. It may not exist yet."""
    return (CACHE_HOME.get() or Path.home() / ".cache") / "spac"


def config_file() -> Path:
    """Return the file with the user's default options. It may not exist."""
    return (CONFIG_HOME.get() or Path.home() / ".config") / "spac" / "config.toml"


def state_folder() -> Path:
    """Return spac's folder for files that programs remember things in. It may not exist yet."""
    return (STATE_HOME.get() or Path.home() / ".local" / "state") / "spac"
