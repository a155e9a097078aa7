"""The settings that are compared: every combination of what was listed, and what to compare them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spac.config import EngineConfig, Slots
from spac.errors import InputError
from spac.scheduler import parse

ROOFLINE = "roofline"
"""Among draft lengths: chosen while it runs."""
Length = int | None
"""Of drafts; None where the governor chooses."""
NO_SLOTS = Slots(count=0)


@dataclass(frozen=True)
class Candidate:
    """One setting of an engine. A `scheduler` of "" is one without the split."""

    device: str
    scheduler: str
    slots: Slots
    length: Length
    drafts: bool
    """Whether there is anything to draft with."""
    is_baseline: bool = False

    @property
    def label(self) -> str:
        """As the table names it."""
        device = {"cpu": "the CPU", "auto": "the device"}.get(self.device, self.device)
        parts = [self.scheduler or f"{device} alone"]
        if self._has_slots:
            parts.append(f"slots {_written(self.slots)}")
        if self.drafts:
            parts.append(f"draft {ROOFLINE if self.length is None else self.length}")
        return ", ".join(parts)

    @property
    def arguments(self) -> list[str]:
        """The options of `spac.run` that say the same."""
        words = ["--device", "cpu"] if self.device == "cpu" else []
        if self.scheduler:
            words += ["--scheduler", self.scheduler]
        if self._has_slots:
            words += ["--slots", _written(self.slots)]
        if self.drafts:
            words += ["--governor", ROOFLINE] if self.length is None else ["--draft-length", str(self.length)]
        return words

    @property
    def _has_slots(self) -> bool:
        return bool(self.scheduler) and self.scheduler != "none"

    def config(self, base: EngineConfig) -> EngineConfig:
        """`base` with these settings. Raises InputError for what does not go together."""
        config = replace(base, device=self.device, scheduler=self.scheduler or "none", slots=self.slots)
        if not self.drafts:
            return config
        if self.length is None:
            return replace(config, governor=ROOFLINE, draft_length=None)
        shortest = base.draft_min if self.length else 0
        return replace(config, governor="fixed", draft_length=self.length, draft_max=None, draft_min=shortest)


def combinations(
    base: EngineConfig,
    schedulers: Sequence[str],
    slots: Sequence[Slots],
    lengths: Sequence[Length],
    *,
    splits: bool,
    baseline: bool,
) -> list[Candidate]:
    """Every combination once; with `baseline`, also the CPU alone at every draft length.

    Where nothing is drafted with, `lengths` is (0,). Settings that come to the same (no slots under any
    scheduler) are one. Raises InputError for what does not go together.
    """
    drafts = can_draft(base)
    split = [_split(scheduler, n) for scheduler in schedulers for n in slots] if splits else [("", NO_SLOTS)]
    found: list[Candidate] = []
    if baseline:
        found += [Candidate("cpu", "", NO_SLOTS, length, drafts, is_baseline=True) for length in lengths]
    found += [
        Candidate(base.device, scheduler, n, length, drafts) for scheduler, n in split for length in lengths
    ]
    found = list(dict.fromkeys(found))
    for candidate in found:
        candidate.config(base)
    return found


def can_draft(config: EngineConfig) -> bool:
    """Whether there is anything to draft with, when drafts may have a length."""
    return bool(replace(config, draft_length=None, governor=None, draft_max=1, draft_min=0).draft_types)


def _split(scheduler: str, slots: Slots) -> tuple[str, Slots]:
    name, _ = parse(scheduler)
    if name == "none" or slots.count == 0 or slots.share == 0:
        return "none", NO_SLOTS
    return scheduler, slots


def _written(slots: Slots) -> str:
    return f"{slots.share * 100:.6g}%" if slots.share is not None else str(slots)


def parse_length(text: str) -> Length:
    """A draft length as a user writes it; its range is the configuration's to check. Raises InputError."""
    if text == ROOFLINE:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"'{text}' is no draft length: a whole number from 0, or '{ROOFLINE}'") from None


def default_lengths(config: EngineConfig) -> Iterable[Length]:
    """None at all, and as the governor chooses; the latter goes by times, which --deterministic excludes."""
    if not can_draft(config):
        return (0,)
    return (0, replace(config, governor="fixed").longest_draft) if config.deterministic else (0, None)
