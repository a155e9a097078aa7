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

    def lists(self) -> list[dict[str, Any]]:
        """Return the pairs of each list, where semicolons separate lists; none if the variable is not set.

        Raise InputError for an unknown name, and for a number that is not finite or less than 0.
        """
        text = os.environ.get(self.name, "")
        return [self._pairs(part) for part in text.split(";")] if text else []

    def _pairs(self, text: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for pair in filter(None, map(str.strip, text.split(","))):
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
class Parts:
    """A variable that switches parts of the mechanism: their names, with commas, "no-" before what is off.

    "safe" switches all parts off. Of words that contradict each other, the last one holds. `known` has the
    parts and their meaning.
    """

    name: str
    known: dict[str, str]
    doc: str

    def get(self, part: str) -> bool | None:
        """Return True if a part is on and False if it is off; None if nothing is said about it.

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
            found |= dict.fromkeys(self.known, False) if word == "safe" else {named: named == word}
        return found.get(part)


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
    "The folder from which llama-cpp-python takes libllama.so. spac sets it to the folder of its own "
    "library when it loads that library. A value from outside is not read.",
)
DEVICE = Text(
    "SPAC_DEVICE",
    "The device that `--device auto` means, such as CUDA1, simulated or cpu, or several, such as "
    "CUDA0,CUDA1. Not set: all GPUs, or the CPU alone without one.",
)
STATE = Choice(
    "SPAC_STATE",
    ("auto", "off"),
    "The meaning of `--state auto`. off keeps nothing of what schedulers learn, for tests and comparisons. "
    "If it is not set, it is auto.",
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
        "kernel_share": float,
        "fault": str,
    },
    "How the simulated device behaves, for tests and for seeing what a slow link does, such as "
    '"upload_gb_s=4,latency_us=10,memory_mb=64". The names are those of _core.set_simulated_device. Further '
    'devices, simulated1 and so on, follow after semicolons, such as "memory_mb=64;memory_mb=32". Not set: '
    "one device, as fast as memory, half of the host's.",
)
FORM = Parts(
    "SPAC_FORM",
    {
        "masks": "The device reads the ids masks itself. Without it, the CPU lists the experts in slots, and "
        "the device waits. CUDA, whose kernels have been tried, and the simulated device do this.",
        "ahead": "The work after the CPU's part of a layer is queued on the device before the CPU is done. "
        "GPUs do this. The simulated device does not, because it shares the CPU's cores.",
        "in-place": "A layer's ids, input and rows pass between CPU and GPU in pinned memory, which kernels "
        "read and write themselves. Without it, they are copied, which takes longer. CUDA does this.",
        "pinned": "The driver pins experts in host memory: it registers the file's mapping. Without it, "
        "copies go through a staging buffer, and prompts are slower. All drivers that can do this.",
        "lookahead": "Layers look ahead where --lookahead is not given. GPUs do this.",
        "whole": "A model whose experts all fit runs without the split, on GPUs with memory of their own.",
        "rehearsal": "The largest graphs run once before experts get slots, so that the device's libraries "
        "have taken their memory. GPUs do this.",
        "schedule-beside": "The scheduler works on a thread of its own while the next step computes. GPUs do "
        "this where two cores are left beside the threads that compute.",
        "cpu-kernels": "The CPU takes the faster of llama.cpp's functions and spac's kernels, for each type "
        "of weights. This is measured once per machine. Without it, llama.cpp's functions compute. The "
        "results are the same. All CPUs with kernels do this.",
        "pin-threads": "Each thread that computes is bound to the next best CPU: first threads of cores come "
        "first, and performance cores come before others. Without it, the system places them. Without a "
        "word, all threads share the best CPUs, as many as there are threads, on machines with two kinds of "
        "cores or several NUMA nodes. Others leave it to the system, because a bound thread waits where "
        "another program runs. The thread that decodes belongs to the application, and is never bound.",
        # No GPU has shown enough of these two to switch them on.
        "early-rows": "While the GPU computes what lies before a layer, the CPU's threads read experts that "
        "the layer will probably leave to them into the processor's caches.",
        "upload-threads": "Threads bring experts that are not pinned to pinned memory: for long prompts "
        "where that is faster than the driver's way, which the first such copy decides, and two threads for "
        "copies beside steps.",
    },
    "The form of the split, such as no-ahead,no-in-place. If nothing is said about a part, the device "
    "decides. safe switches all parts off, for devices and drivers on which one fails.",
)
GATE_TIMEOUT = Number(
    "SPAC_GATE_TIMEOUT",
    "The number of seconds that the CPU waits for a layer that was queued ahead of it. After that, one line "
    "says where it waited, the step fails, and later steps do not launch ahead. If it is not set, it is 20. "
    "0 waits for ever, for debuggers.",
)
RPC_TIMEOUT = Number(
    "SPAC_RPC_TIMEOUT",
    "The number of seconds for which an RPC server may be silent while something is expected of it: an "
    "answer, or room for more data. After that the connection is lost. The longest such time is that of a "
    "prompt's graph on the server's layers. If it is not set, it is 60. 0 waits for ever.",
)
PIN_LIMIT = Size(
    "SPAC_PIN_LIMIT",
    "The most bytes of experts that may be pinned, of all models of the process together, such as 64G. "
    "Experts beyond it are treated as with SPAC_FORM=no-pinned. If it is not set, all are pinned. Under "
    "WSL2, which pins no more, half of the memory is.",
)
CPU_VARIANT = Choice(
    "SPAC_CPU_VARIANT",
    ("baseline", "avx2", "avx512"),
    "For tests: the variant of a wheel's library. If it is not set, the CPU's instruction sets decide. A "
    "build from source has one library, made for its machine.",
)
CACHE_HOME = Folder(
    "XDG_CACHE_HOME",
    "The user's folder for files that can be made again. If it is not set, it is ~/.cache. spac uses spac/ "
    "in it.",
)
STATE_HOME = Folder(
    "XDG_STATE_HOME",
    "The user's folder for files in which programs remember things, such as the lines typed into the chat. "
    "If it is not set, it is ~/.local/state. spac uses spac/ in it.",
)
CONFIG_HOME = Folder(
    "XDG_CONFIG_HOME",
    "The user's folder for settings. If it is not set, it is ~/.config. spac reads spac/config.toml in it.",
)
CONFIG = Text(
    "SPAC_CONFIG",
    "The file of options that `spac run`, `spac chat` and `spac serve` start from, in place of "
    "spac/config.toml in the folder of settings. /dev/null stands for no such options.",
)
NO_COLOR = Text(
    "NO_COLOR", "If it is not empty, programs write plain text, without color and rendered Markdown."
)
EXEC = Text(
    "SPAC_EXEC",
    "The options that `spac exec` passes on to the program and its child processes: the arguments of "
    "`spac.enable()`, as JSON.",
)
API_KEY = Text("SPAC_API_KEY", "The key that clients of the server must send. --api-key takes precedence.")


def cache_folder() -> Path:
    """Return spac's folder for files that can be made again. It may not exist yet."""
    return (CACHE_HOME.get() or Path.home() / ".cache") / "spac"


def config_file() -> Path:
    """Return the file with the user's default options. It may not exist."""
    return Path(CONFIG.get() or (CONFIG_HOME.get() or Path.home() / ".config") / "spac" / "config.toml")


def state_folder() -> Path:
    """Return spac's folder for files that programs remember things in. It may not exist yet."""
    return (STATE_HOME.get() or Path.home() / ".local" / "state") / "spac"
