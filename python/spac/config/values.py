"""Values that a user can write in several ways: slots, layers, memory limits, batches, adapters."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from spac.errors import InputError
from spac.machine.device_memory import SIZES, parse_size, size

SPLIT_MODES = ("none", "layer")
"""The ways to use several devices: the main one alone, or each for some of the layers."""


@dataclass(frozen=True)
class Slots:
    """The number of experts that the device holds: a share of all experts, or a count.

    If both are None, the device holds the experts that fit.
    """

    share: float | None = None
    count: int | None = None

    ACCEPTED = "'auto', a count (64), or a share of all experts (25% or 0.25)"

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InputError(f"slots: the share {self.share * 100:g}% is not within 0% to 100%")
        if self.count is not None and self.count < 0:
            raise InputError(f"slots: the count {self.count} is negative")

    @property
    def is_auto(self) -> bool:
        """True if the device holds the experts that fit."""
        return self.share is None and self.count is None

    def of(self, n_experts: int) -> int:
        """Return the number of slots for a model with `n_experts` experts in all its layers. Not for auto."""
        wanted = round(self.share * n_experts) if self.share is not None else self.count or 0
        return min(wanted, n_experts)

    @classmethod
    def parse(cls, value: Slots | str | int | float) -> Slots:
        """Return the slots that a user's value means. Raises InputError.

        Integers are counts. Numbers with a point or a percent sign are shares.
        """
        if isinstance(value, Slots):
            return value
        if isinstance(value, int):
            return cls(count=value)
        if isinstance(value, float):
            return cls(share=value)
        text = value.strip().lower()
        if text == "auto":
            return cls()
        try:
            if text.endswith("%"):
                return cls(share=float(text[:-1]) / 100)
            return cls(share=float(text)) if "." in text else cls(count=int(text))
        except InputError:
            raise
        except ValueError:
            raise InputError(f"slots: must be {cls.ACCEPTED}, not '{value}'") from None

    def __str__(self) -> str:
        if self.is_auto:
            return "auto"
        return f"{self.share:.6g}" if self.share is not None else str(self.count)


@dataclass(frozen=True)
class GpuLayers:
    """The number of layers on the device; None for all of them, or for those that fit if `is_auto`."""

    count: int | None = None
    is_auto: bool = False

    @classmethod
    def parse(cls, value: GpuLayers | str | int, name: str = "gpu_layers") -> GpuLayers:
        """Return the layers that a user's value means. Raises InputError, which begins with `name`.

        Negative numbers mean all layers, as in llama.cpp.
        """
        if isinstance(value, GpuLayers):
            return value
        if value in ("all", "auto"):
            return cls(is_auto=value == "auto")
        try:
            if isinstance(value, bool | float):
                raise ValueError
            number = int(value)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be a number of layers, all or auto, not {value!r}") from None
        return cls() if number < 0 else cls(min(number, 2**31 - 1))

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else "auto" if self.is_auto else "all"


@dataclass(frozen=True)
class VramLimit:
    """The limit of the memory that spac's buffers take of a device together.

    It is a number of bytes, or a share of the device's memory. One of the two is None.
    """

    n_bytes: int | None = None
    share: float | None = None

    ACCEPTED = f"{SIZES} or a share of the GPU's memory (50%)"

    def __post_init__(self) -> None:
        if self.n_bytes is not None and self.n_bytes <= 0:
            raise InputError(f"vram_limit: {self.n_bytes} bytes are no memory")
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"vram_limit: the share {self.share * 100:g}% is not above 0% and up to 100%")

    def of(self, total: int) -> int:
        """Return the limit in bytes for a device of `total` bytes."""
        return self.n_bytes if self.n_bytes is not None else int((self.share or 1.0) * total)

    @classmethod
    def parse(cls, value: VramLimit | str | int | float) -> VramLimit:
        """Return the limit that a user's value means. Raises InputError.

        Integers are bytes. Floating-point numbers are shares.
        """
        if isinstance(value, VramLimit):
            return value
        if isinstance(value, int):
            return cls(n_bytes=value)
        if isinstance(value, float):
            return cls(share=value)
        text = value.strip().lower()
        if (n_bytes := parse_size(text)) is not None:
            return cls(n_bytes=n_bytes)
        if match := re.fullmatch(r"(\d+(?:\.\d+)?)%", text):
            return cls(share=float(match[1]) / 100)
        raise InputError(f"vram_limit: must be {cls.ACCEPTED}, not '{value}'")

    def __str__(self) -> str:
        return f"{self.share:.6g}" if self.n_bytes is None else size(self.n_bytes)


@dataclass(frozen=True)
class _Tokens:
    """A number of tokens that a user can leave to spac."""

    tokens: int | None = None

    NAME: ClassVar[str]
    ACCEPTED: ClassVar[str]
    RANGE: ClassVar[range]

    @classmethod
    def parse(cls, value: Self | str | int) -> Self:
        """Return the number that a user's value means. Raises InputError."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.strip().lower() == "auto":
            return cls()
        try:
            tokens = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            tokens = -1
        if isinstance(value, bool | float) or tokens not in cls.RANGE:
            raise InputError(f"{cls.NAME}: {value!r} is not {cls.ACCEPTED}")
        return cls(tokens)

    def __str__(self) -> str:
        return "auto" if self.tokens is None else str(self.tokens)


class StreamBatch(_Tokens):
    """The batch size, in tokens, from which prompts run all experts on the device.

    0 means never. None means that the size is estimated from measured costs.
    """

    NAME, ACCEPTED, RANGE = "stream_batch", "'auto', or a number of tokens (0: never)", range(2**31)
    LEAST = 32
    """Tokens. `auto` never streams smaller batches, which may be verifications."""


class GraphTokens(_Tokens):
    """The number of tokens of one graph. None means that it is chosen for each prompt."""

    NAME, ACCEPTED, RANGE = "ubatch", "'auto', or a number of tokens (1 to 65536)", range(1, 2**16 + 1)
    SMALL = 512
    """Tokens. With `auto`, graphs have so many tokens unless a prompt gains by larger ones."""
    LARGE = 8192
    """Tokens. `auto` never makes larger graphs."""

    @property
    def least(self) -> int:
        """The tokens of graphs for which a context is made."""
        return self.SMALL if self.tokens is None else self.tokens


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter's file, and the factor that the adapter is applied with."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float):
            raise InputError(f"lora: the scale of {self.path} must be a number, not {self.scale!r}")
        if not math.isfinite(self.scale) or abs(self.scale) > 1e6:
            raise InputError(f"lora: the scale of {self.path} is {self.scale}, not -1000000 to 1000000")

    @classmethod
    def of(cls, value: Any) -> Adapter:
        """Return an adapter from an adapter, a path, or a pair of path and scale. Raises InputError."""
        if isinstance(value, Adapter):
            return value
        if isinstance(value, str | os.PathLike):
            return cls(Path(value))
        try:
            path, scale = value
        except (TypeError, ValueError):
            raise InputError(f"lora: {value!r} is neither a file nor a pair of file and scale") from None
        return cls(Path(path), scale)

    @classmethod
    def several(cls, values: Any) -> tuple[Adapter, ...]:
        """Return adapters from one value that `of` accepts, or from a sequence of them. Raises InputError."""
        if isinstance(values, str | os.PathLike | Adapter):
            return (cls.of(values),)
        return tuple(map(cls.of, values))

    @classmethod
    def parse(cls, text: str) -> tuple[Adapter, ...]:
        """Return the adapters in a text `FILE,…`. An existing file whose name has a comma is one adapter."""
        names = [text] if os.path.exists(text) else text.split(",")  # which takes texts too long for a name
        return tuple(cls(Path(name)) for name in names)

    @classmethod
    def parse_scaled(cls, text: str) -> tuple[Adapter, ...]:
        """Return the adapters in a text `FILE:SCALE,…`. Raises InputError."""
        found = []
        for item in text.split(","):
            name, _, scale = item.rpartition(":")
            try:
                found.append(cls(Path(name), float(scale)))
            except ValueError as error:
                if isinstance(error, InputError):
                    raise
                name = ""
            if not name:
                raise InputError(f"'{item}' is not FILE:SCALE") from None
        return tuple(found)


def split_mode(value: str) -> str:
    """Return the way in which layers are divided between devices. Raises InputError."""
    word = str(value).strip().lower()
    if word in ("row", "tensor"):
        raise InputError(
            f"split_mode: '{word}' divides each matrix between devices, and an expert's slot is on one: give "
            "layer, or none for the main GPU alone"
        )
    if word not in SPLIT_MODES:
        raise InputError(f"split_mode: '{value}' is not one of {', '.join(SPLIT_MODES)}")
    return word


def tensor_split(value: str | float | Sequence[float]) -> tuple[float, ...] | None:
    """Return each device's part of the layers, or None if all parts are 0, as in llama.cpp.

    Texts have commas or slashes between numbers. Raises InputError.
    """
    parts: Any = re.split("[,/]", value) if isinstance(value, str) else value
    try:
        found = tuple(float(part) for part in ((parts,) if isinstance(parts, int | float) else parts))
    except (TypeError, ValueError):
        found = (math.nan,)
    if not all(0 <= part < math.inf for part in found):
        raise InputError(
            f"tensor_split: {value!r} is not a list of parts such as 3,1: give a number from 0 on for each "
            "device"
        )
    return found if any(found) else None
