"""The schedulers by name. A scheduler decides which experts are resident."""

from __future__ import annotations

from typing import Any

from spac.scheduler.base import Event, Layer, Plan, Scheduler, View, share_slots
from spac.scheduler.choice import SchedulerChoice, class_of, names, parse

__all__ = [
    "Event",
    "Layer",
    "Plan",
    "Scheduler",
    "SchedulerChoice",
    "View",
    "make",
    "names",
    "parse",
    "share_slots",
]


def make(name: str | SchedulerChoice, **options: Any) -> Scheduler:
    """Return a new scheduler.

    `name` may carry options, see `parse`. Options that are given as arguments override them. Raise InputError
    for an unknown name or option; the message names the known ones.
    """
    choice = SchedulerChoice.parse(name, options)
    return class_of(choice.name)(**choice.options)
