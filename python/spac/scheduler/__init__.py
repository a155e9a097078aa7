"""The schedulers by name. A scheduler decides which experts are resident."""

from __future__ import annotations

from typing import Any

from spac.errors import InputError
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View, share_slots
from spac.scheduler.ewma import EwmaScheduler
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.lru import LruScheduler
from spac.scheduler.moe_spac import MoeSpacScheduler
from spac.scheduler.moe_speq import MoeSpeqScheduler
from spac.scheduler.none import NoneScheduler
from spac.scheduler.sp_moe import SpMoeScheduler
from spac.scheduler.static import StaticScheduler

_SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler
    for scheduler in (
        LruScheduler,
        StaticScheduler,
        NoneScheduler,
        EwmaScheduler,
        LogisticScheduler,
        MoeSpacScheduler,
        MoeSpeqScheduler,
        SpMoeScheduler,
    )
}

__all__ = ["Event", "Layer", "Plan", "Scheduler", "View", "make", "names", "parse", "share_slots"]


def names() -> tuple[str, ...]:
    """Return the names of the schedulers that `make` creates."""
    return tuple(_SCHEDULERS)


def make(name: str, **options: Any) -> Scheduler:
    """Return a new scheduler.

    `name` may carry options, see `parse`. Options that are given as arguments override them. Raise InputError
    for an unknown name or option; the message names the known schedulers.
    """
    name, written = parse(name)
    try:
        return _SCHEDULERS[name](**{**written, **options})
    except TypeError as error:
        raise InputError(f"scheduler '{name}' does not take these options: {error}") from None


def parse(text: str) -> tuple[str, dict[str, bool | int | float | str]]:
    """Return a scheduler's name and options from "name:key=value,…", such as "moe-spac:levels=8,balance=off".

    A value is on/off (or true/false), a number, or a word. Raise InputError for an unknown scheduler and for
    text that cannot be read. `make` finds unknown options.
    """
    name, _, written = text.partition(":")
    if name not in _SCHEDULERS:
        raise InputError(f"unknown scheduler '{name}': choose one of {', '.join(names())}")
    options: dict[str, bool | int | float | str] = {}
    for item in filter(None, written.split(",")):
        key, equals, value = item.partition("=")
        if not (key.isidentifier() and equals and value):
            raise InputError(f"scheduler '{name}': '{item}' is not an option of the form key=value")
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
