"""The settings that are compared: every combination of the listed values, and the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spac.config import EngineConfig, Slots
from spac.errors import InputError
from spac.scheduler import SchedulerChoice

ROOFLINE = "roofline"
"""The word for a draft length that the governor chooses while it runs."""
Length = int | None
"""A draft length, or None where the governor chooses it."""
NO_SLOTS, NOTHING = Slots(count=0), SchedulerChoice("none")


@dataclass(frozen=True)
class Candidate:
    """One setting of an engine; without a `scheduler`, experts are not split."""

    device: str
    scheduler: SchedulerChoice | None
    slots: Slots
    length: Length
    drafts: bool
    """True if there is something to draft with."""
    is_baseline: bool = False

    @property
    def label(self) -> str:
        """The name of the setting in the table."""
        device = {"cpu": "the CPU", "auto": "the device"}.get(self.device, self.device)
        parts = [str(self.scheduler or f"{device} alone")]
        if self._has_slots:
            parts.append(f"slots {_written(self.slots)}")
        if self.drafts:
            parts.append(f"draft {ROOFLINE if self.length is None else self.length}")
        return ", ".join(parts)

    @property
    def arguments(self) -> list[str]:
        """The options of `spac.run` for this setting."""
        words = ["--device", "cpu"] if self.device == "cpu" else []
        if self.scheduler:
            words += ["--scheduler", str(self.scheduler)]
        if self._has_slots:
            words += ["--slots", _written(self.slots)]
        if self.drafts and self.length is not None:
            words += ["--draft-length", str(self.length)]
        return words

    @property
    def _has_slots(self) -> bool:
        return self.scheduler not in (None, NOTHING)

    def config(self, base: EngineConfig) -> EngineConfig:
        """Return `base` with these settings; raise InputError for options that exclude each other."""
        if self.device == "cpu":  # The CPU has no slots.
            base = replace(base, slot_devices=None)
        config = replace(
            base, device=self.device, scheduler=self.scheduler or NOTHING, slots=self.slots, state="off"
        )
        if not self.drafts:
            return config
        if self.length is None:
            if config.deterministic:
                raise InputError(
                    f"the draft length '{ROOFLINE}' goes by times, which --deterministic excludes"
                )
            return replace(config, draft_length=None)
        shortest = base.draft_min if self.length else 0
        return replace(config, draft_length=self.length, draft_max=None, draft_min=shortest)


def combinations(
    base: EngineConfig,
    schedulers: Sequence[SchedulerChoice],
    slots: Sequence[Slots],
    lengths: Sequence[Length],
    *,
    splits: bool,
    baseline: bool,
) -> list[Candidate]:
    """Return every combination once; with `baseline`, also the CPU alone at every draft length.

    `lengths` is (0,) if there is nothing to draft with. Equivalent settings (no slots under any scheduler)
    count as one. Raise InputError for options that exclude each other.
    """
    drafts = can_draft(base)
    split = (
        [_split(scheduler, n) for scheduler in schedulers for n in slots] if splits else [(None, NO_SLOTS)]
    )
    found: list[Candidate] = []
    if baseline:
        found += [Candidate("cpu", None, NO_SLOTS, length, drafts, is_baseline=True) for length in lengths]
    found += [
        Candidate(base.device, scheduler, n, length, drafts) for scheduler, n in split for length in lengths
    ]
    found = list(dict.fromkeys(found))
    for candidate in found:
        candidate.config(base)
    return found


def can_draft(config: EngineConfig) -> bool:
    """Return True if there is something to draft with when drafts may have a length."""
    return bool(replace(config, draft_length=None, draft_max=1, draft_min=0).draft_types)


def _split(scheduler: SchedulerChoice, slots: Slots) -> tuple[SchedulerChoice | None, Slots]:
    if scheduler == NOTHING or slots.count == 0 or slots.share == 0:
        return NOTHING, NO_SLOTS
    return scheduler, slots


def _written(slots: Slots) -> str:
    return f"{slots.share * 100:.6g}%" if slots.share is not None else str(slots)


def parse_length(text: str) -> Length:
    """Return the draft length that a user wrote; the configuration checks its range.

    Raise InputError for text that is neither a number nor the governor's name.
    """
    if text == ROOFLINE:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"'{text}' is no draft length: a whole number from 0, or '{ROOFLINE}'") from None


def default_lengths(config: EngineConfig) -> Iterable[Length]:
    """Return 0 and the governor's choice, which --deterministic excludes: then 0 and the longest draft."""
    return (0, config.longest_draft if config.deterministic else None)
