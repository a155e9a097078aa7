"""The choice of a scheduler: its name and its options, as a user writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from spac.errors import InputError

if TYPE_CHECKING:
    from spac.scheduler.base import Scheduler

SCHEDULERS = {
    "lru": "spac.scheduler.lru:LruScheduler",
    "static": "spac.scheduler.fixed:StaticScheduler",
    "none": "spac.scheduler.fixed:NoneScheduler",
    "ewma": "spac.scheduler.ewma:EwmaScheduler",
    "logistic": "spac.scheduler.logistic:LogisticScheduler",
    "moe-spac": "spac.papers.moe_spac:MoeSpacScheduler",
    "moe-speq": "spac.papers.moe_speq:MoeSpeqScheduler",
    "sp-moe": "spac.papers.sp_moe:SpMoeScheduler",
    "mixtral-offloading": "spac.papers.mixtral_offloading:MixtralOffloadingScheduler",
    "moe-infinity": "spac.papers.moe_infinity:MoeInfinityScheduler",
    "adapmoe": "spac.papers.adapmoe:AdapMoeScheduler",
    "fate": "spac.papers.fate:FateScheduler",
    "hybrimoe": "spac.papers.hybrimoe:HybriMoeScheduler",
    "profiled": "spac.papers.profiled:ProfiledScheduler",
}
"""The schedulers' modules and classes, by the schedulers' names. The papers' room is known by name alone."""


def names() -> tuple[str, ...]:
    """Return the names of the schedulers that `make` creates."""
    return tuple(SCHEDULERS)


def class_of(name: str) -> type[Scheduler]:
    """Return the class of the scheduler `name`. Its module is imported when it is first asked for."""
    found: type[Scheduler] = resolve_name(SCHEDULERS[name])
    return found


@dataclass(frozen=True)
class SchedulerChoice:
    """A known scheduler, and options that it accepts. Raise InputError for others."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options that are given; the scheduler's defaults apply to the others."""

    def __post_init__(self) -> None:
        if self.name not in SCHEDULERS:
            raise InputError(f"unknown scheduler '{self.name}': choose one of {', '.join(names())}")
        declared = class_of(self.name).option_type
        known = [item.name for item in fields(declared)]
        for name in self.options:
            if name not in known:
                hint = f"has no option '{name}'; it knows: {', '.join(known)}"
                hint = hint if known else f"does not take '{name}': it has no options"
                raise InputError(f"scheduler '{self.name}' {hint}")
        declared(**self.options)

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
    presets = class_of(name).option_type.presets if name in SCHEDULERS else {}
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
