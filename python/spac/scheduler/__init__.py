"""Schedulers by name: what decides which experts are resident."""

from __future__ import annotations

from typing import Any

from spac.errors import InputError
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View, share_slots
from spac.scheduler.lru import LruScheduler
from spac.scheduler.none import NoneScheduler
from spac.scheduler.static import StaticScheduler

_SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler for scheduler in (LruScheduler, StaticScheduler, NoneScheduler)
}

__all__ = ["Event", "Layer", "Plan", "Scheduler", "View", "make", "names", "share_slots"]


def names() -> tuple[str, ...]:
    """The schedulers that `make` knows."""
    return tuple(_SCHEDULERS)


def make(name: str, **options: Any) -> Scheduler:
    """A new scheduler. Raises InputError for an unknown name or option, naming the known ones."""
    if name not in _SCHEDULERS:
        raise InputError(f"unknown scheduler '{name}': choose one of {', '.join(names())}")
    try:
        return _SCHEDULERS[name](**options)
    except TypeError as error:
        raise InputError(f"scheduler '{name}' does not take these options: {error}") from None
