"""The choice of a scheduler: its name and its options, as a user writes them.

Options are declared without the schedulers, so that a configuration can check them before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType, UnionType
from typing import Any, ClassVar

from spac.errors import InputError

_KINDS: dict[str, type | UnionType] = {"int": int, "float": int | float, "bool": bool}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "on or off"}


@dataclass(frozen=True)
class Options:
    """The options of one scheduler. Raise InputError for values of a wrong type or out of range."""

    scheduler: ClassVar[str]
    """The scheduler's name."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options that go by one word, as in "moe-spac:paper"."""

    def __post_init__(self) -> None:
        for item in fields(self):
            kind, value = str(item.type), getattr(self, item.name)
            if kind in _KINDS and (
                not isinstance(value, _KINDS[kind]) or isinstance(value, bool) != (kind == "bool")
            ):
                raise self.refusal(item.name, _WORDS[kind])

    def refusal(self, name: str, accepted: str) -> InputError:
        """Return the error for the value of an option that is not what is `accepted`."""
        return InputError(
            f"scheduler '{self.scheduler}': {name} must be {accepted}, not {getattr(self, name)!r}"
        )

    def check_count(self, name: str, word: str, least: int) -> None:
        """Raise InputError unless the option is `word`, or a whole number of at least `least`."""
        value = getattr(self, name)
        if value != word and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise self.refusal(name, f"'{word}' or a number of at least {least}")


@dataclass(frozen=True)
class LogisticOptions(Options):
    """The options of `logistic`."""

    scheduler = "logistic"

    margin: float | str = "auto"
    """The gain in probability that is worth a copy, 0 to less than 1. "auto": from what copies cost."""
    whole: bool = True
    """True: layers are made whole where that pays (`whole_layers`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin != "auto" and (isinstance(self.margin, bool | str) or not 0 <= self.margin < 1):
            raise self.refusal("margin", "'auto' or a number of at least 0 and below 1")


@dataclass(frozen=True)
class MoeSpacOptions(Options):
    """The parameters of `moe-spac`, and a switch for every part that the paper's Table 4 leaves out."""

    scheduler = "moe-spac"
    presets = MappingProxyType({"paper": {"printed": True, "levels": 4}})
    """The preset is the system as printed. Rows of Table 4 are further options."""

    levels: int = 3
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ: the share of the newest change in the boundary calibration."""
    printed: bool = False
    """True: the system as printed, without what was added; docs/internals/papers.md has the list."""
    learned: bool = True
    """False: decayed counts give the order within a level, and no layers are made whole.

    So it is without `logistic`. The printed form and "w/o SpecUE" are so too.
    """
    speculative: bool = True
    """False: "w/o SpecUE". The utility says whether the last step used the expert, and K = 1."""
    adapt: bool = True
    """False: "w/o AdaBC". The boundaries are fixed (3 and 1 in the printed form)."""
    balance: bool = True
    """False: "w/o HetWB". τ is 2 in all layers, or K if that is lower."""
    prefetch: bool = True
    """False: "w/o SG-Prefetcher". A static set of experts is resident."""
    evict: bool = True
    """False: "w/o SG-Evictor". Experts stay until a pool is full.

    Then the least recently used expert is evicted, whatever its utility.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.levels <= 64:
            raise self.refusal("levels", "1 to 64")
        if not 0 <= self.forgetting <= 1:
            raise self.refusal("forgetting", "0 to 1")


@dataclass(frozen=True)
class SpMoeOptions(Options):
    """The options of `sp-moe`."""

    scheduler = "sp-moe"

    cutoff: int | str = "auto"
    """The number of layers whose experts are prefetched. "auto": as many as load while a token is drafted."""
    critical: int | str = "used"
    """k: the experts of a token and layer that are prefetched. "used": as many as the token uses."""

    def __post_init__(self) -> None:
        self.check_count("cutoff", "auto", 0)
        self.check_count("critical", "used", 1)


OPTIONS: dict[str, type[Options]] = {
    "lru": Options, "static": Options, "none": Options, "ewma": Options, "logistic": LogisticOptions,
    "moe-spac": MoeSpacOptions, "moe-speq": Options, "sp-moe": SpMoeOptions, "mixtral-offloading": Options,
    "moe-infinity": Options, "adapmoe": Options, "fate": Options, "hybrimoe": Options, "profiled": Options,
}  # fmt: skip
"""The schedulers' options, by the schedulers' names."""


def names() -> tuple[str, ...]:
    """Return the names of the schedulers that `make` creates."""
    return tuple(OPTIONS)


@dataclass(frozen=True)
class SchedulerChoice:
    """A known scheduler, and options that it accepts. Raise InputError for others."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options that are given; the scheduler's defaults apply to the others."""

    def __post_init__(self) -> None:
        if self.name not in OPTIONS:
            raise InputError(f"unknown scheduler '{self.name}': choose one of {', '.join(names())}")
        known = [item.name for item in fields(OPTIONS[self.name])]
        for name in self.options:
            if name not in known:
                hint = f"has no option '{name}'; it knows: {', '.join(known)}"
                hint = hint if known else f"does not take '{name}': it has no options"
                raise InputError(f"scheduler '{self.name}' {hint}")
        OPTIONS[self.name](**self.options)

    @classmethod
    def parse(cls, value: str | SchedulerChoice, options: Mapping[str, Any] | None = None) -> SchedulerChoice:
        """Return the choice that a text means, see `parse`. `options` override those in the text."""
        name, written = parse(value) if isinstance(value, str) else (value.name, value.options)
        return cls(name, {**written, **(options or {})})

    def __str__(self) -> str:
        words = {True: "on", False: "off"}
        items = [
            f"{key}={words[value] if isinstance(value, bool) else value}"
            for key, value in self.options.items()
        ]
        return ":".join(filter(None, (self.name, ",".join(items))))


def parse(text: str) -> tuple[str, dict[str, bool | int | float | str]]:
    """Return a scheduler's name and options from "name:key=value,…", such as "moe-spac:levels=8,balance=off".

    A value is on/off (or true/false), a number, or a word. A word in the place of key=value is a preset of
    the scheduler, which other items override. Raise InputError for text that cannot be read.
    """
    name, _, written = text.partition(":")
    options: dict[str, bool | int | float | str] = {}
    presets = OPTIONS[name].presets if name in OPTIONS else {}
    for item in filter(None, written.split(",")):
        if item in presets:
            options = {**presets[item], **options}
            continue
        key, equals, value = item.partition("=")
        if not (key.isidentifier() and equals and value):
            known = "".join(f", nor the preset '{preset}'" for preset in presets)
            raise InputError(f"scheduler '{name}': '{item}' is not an option of the form key=value{known}")
        options[key] = _value(value)
    return name, options


def _value(text: str) -> bool | int | float | str:
    if text in ("on", "true", "off", "false"):
        return text in ("on", "true")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
