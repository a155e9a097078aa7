"""The outlook on a run of a model here: what is measured already, what will be, what rules decide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spac.config import EngineConfig
from spac.config.values import VramLimit
from spac.doctor.measure import cost_findings
from spac.doctor.trial import Finding
from spac.stats.words import number


def outlook(target: Path | None, limit: VramLimit | None, mmproj: Path | None) -> Iterator[Finding]:
    """Yield what a run with default options does, if a target is given: a finding for each learner."""
    from spac.costs import store
    from spac.engine.own_drafts import with_own_drafts
    from spac.model.devices import choose_devices, schedules_beside, usual_threads
    from spac.model.expected_speed import SOURCES, expected_speed, kept_costs
    from spac.model.gguf.check import check_model
    from spac.model.whole import all_fit

    if target is None:
        return
    info, devices = check_model(target), choose_devices("auto")
    device = devices[0].name if devices else "cpu"
    if (speed := expected_speed(info, device)) is None:
        yield Finding("speed", "ok", "not known before a run")
    else:
        tokens = f"{number(speed.tokens_per_second)} tokens/s without a draft"
        yield Finding("speed", "ok", f"{tokens}, {SOURCES[speed.source]}")
    config = EngineConfig(target, vram_limit=limit, mmproj=mmproj)
    costs, entry = kept_costs(target, device), store.newest("costs", target, device)
    last: dict[str, Any] = entry.value.get("run", {}) if entry is not None else {}
    splits = bool(devices) and info.is_moe and not all_fit(config, info, None, devices)
    if not splits:
        yield Finding("unit costs", "ok", "a run without the split measures the time of a token alone")
    elif costs is None or not costs.experts:
        yield Finding("unit costs", "ok", "guessed at first; each of the first 64 steps corrects them")
    else:
        yield Finding("unit costs", "ok", "measured by earlier runs; every eighth step corrects them")
        yield from cost_findings(costs, drafts="draft_length" in last)
    notes: list[str] = []
    own = with_own_drafts(config, info, notes)
    drafts = f"0 to {own.longest_draft} by the model's own layers" if own.draft_types else "without a draft 0"
    found = f"{drafts}; the first steps of a draft try several, and all others go on measuring"
    if notes:
        found = notes[0]
    elif "draft_length" in last:
        accepted = f"{last['acceptance']:.0%} of first drafted tokens accepted"
        found = f"{last['draft_length']:g} at the end of the last run, {accepted}; its times are known"
    yield Finding("draft length", "ok", found)
    if splits:
        yield Finding("memory", "ok", _slots(last, info.n_experts, gpu=not devices[0].shares_host_cores))
        known = store.newest("state", target, device) is not None
        found = (
            "goes on from what earlier runs learned" if known else "begins cold, and learns from each step"
        )
        yield Finding("scheduler", "ok", f"{config.scheduler.name}: {found}")
        beside = schedules_beside(devices, usual_threads(devices))
        yield Finding("scheduler thread", "ok", f"{'beside' if beside else 'between'} the steps")


def _slots(last: dict[str, Any], n_experts: int, *, gpu: bool) -> str:
    """Return what a run does with the device's memory, and what the last one did."""
    before = f"; {last['slots']} of {n_experts} in the last run" if "slots" in last else ""
    if not gpu:
        return f"a quarter of the experts gets slots{before}"
    rehearsed = "the largest graphs run once at the start, and slots take what is left"
    return f"{rehearsed}; later, they follow the free memory{before}"
