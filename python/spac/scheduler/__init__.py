"""The schedulers by name. A scheduler decides which experts are resident."""

from __future__ import annotations

from typing import Any

from spac.scheduler.adapmoe import AdapMoeScheduler
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View, share_slots
from spac.scheduler.choice import SchedulerChoice, names, parse
from spac.scheduler.ewma import EwmaScheduler
from spac.scheduler.fate import FateScheduler
from spac.scheduler.fixed import NoneScheduler, ProfiledScheduler, StaticScheduler
from spac.scheduler.hybrimoe import HybriMoeScheduler
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.lru import LruScheduler
from spac.scheduler.mixtral_offloading import MixtralOffloadingScheduler
from spac.scheduler.moe_infinity import MoeInfinityScheduler
from spac.scheduler.moe_spac import MoeSpacScheduler
from spac.scheduler.moe_speq import MoeSpeqScheduler
from spac.scheduler.sp_moe import SpMoeScheduler

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
        MixtralOffloadingScheduler,
        MoeInfinityScheduler,
        AdapMoeScheduler,
        FateScheduler,
        HybriMoeScheduler,
        ProfiledScheduler,
    )
}

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
    return _SCHEDULERS[choice.name](**choice.options)
