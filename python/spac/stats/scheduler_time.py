"""The scheduler's time over a generation, and the options with which it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class SchedulerTime:
    """The time that a scheduler took in one generation, also where it works while the next step computes."""

    ns: int = 0
    complete: Callable[[], object] = lambda: None
    """The function that waits until all steps are counted, where another thread counts them."""
    check: Callable[[], object] = lambda: None
    """The function that also raises what the scheduler has raised there, once."""


def given_options(scheduler: object, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's options that are not its defaults.

    They come from the scheduler's `options` if that is a dataclass, else from `written`. Numbers, strings and
    booleans are returned as they are, anything else as text.
    """
    options: Any = getattr(scheduler, "options", None)
    given = written
    if hasattr(type(options), "__dataclass_fields__"):
        default = type(options)()
        given = {name: value for name, value in vars(options).items() if value != getattr(default, name)}
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in given.items()
    }
