"""The choice of a target's own layers for its drafts (`--draft-type auto`), with what its runs have shown."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spac.config import EngineConfig
from spac.costs import store
from spac.errors import InputError
from spac.governor import Governor, RooflineGovernor
from spac.model.gguf.info import ModelInfo
from spac.scheduler.choice import class_of

MTP = "draft-mtp"
SPEED = "tokens_per_second"
LEAST_STEPS = 64
"""The fewest steps after which a run's choice counts."""
RECENT_S = 7 * 86_400
"""The seconds for which a run's choice counts: texts and programs change."""


def with_own_drafts(config: EngineConfig, info: ModelInfo, notes: list[str]) -> EngineConfig:
    """Return the configuration that names the way to draft of the target that `info` describes.

    Without a draft model, layers of the target draft for it (multi-token prediction). They are not loaded if
    the governor stopped drafting with them in the last run on this machine. With a draft model, a first run
    has its drafts, a second one those of the layers, and later ones the faster of both. A line of `notes`
    says what was chosen and why. Without a governor, nobody could find out whether these layers pay, so only
    a fixed length without a draft model loads them.
    """
    if not config.drafts_auto or config.longest_draft == 0 or not info.has_mtp:
        return config
    if config.rpc or config.cpu_expert_layers is not None:
        return config
    if config.draft is not None:
        chosen = config.is_governed and _are_next(config, Path(config.draft), info, notes)
    elif config.is_governed:
        chosen = _paid(config, info, notes)
    else:
        chosen = bool(config.draft_length)
    return replace(config, draft=None, draft_type=(MTP,)) if chosen else config


def _last(
    config: EngineConfig, info: ModelInfo, draft: Path | None, notes: list[str]
) -> dict[str, float] | None:
    """Return what the last run kept, with a draft model or the own layers; None if it was too long ago."""
    with suppress(InputError, OSError):
        key = _key(config, info, draft)
        if (entry := store.get(key, notes)) is not None and time.time() - key.path.stat().st_mtime < RECENT_S:
            return entry.value
    return None


def _key(config: EngineConfig, info: ModelInfo, draft: Path | None) -> store.Key:
    return store.Key.of("drafts", device=config.device, target=info.path, draft=draft)


def _paid(config: EngineConfig, info: ModelInfo, notes: list[str]) -> bool:
    """Return False if the last run with the own layers had stopped drafting."""
    last = _last(config, info, None, notes)
    if last is None or last.get("draft_length") != 0:
        return True
    notes.append(
        f"{info.path.name}: its layers that draft for it are not loaded, for they did not pay in the "
        f"last run here: --draft-type {MTP} loads them"
    )
    return False


def _are_next(config: EngineConfig, draft: Path, info: ModelInfo, notes: list[str]) -> bool:
    """Return True if the own layers draft in place of a draft model: unknown so far, or faster."""
    if class_of(config.scheduler.name).routers is not None:
        return False  # The scheduler reads the routes of the draft model.
    given, own = _last(config, info, draft, notes), _last(config, info, None, notes)
    if given is None:
        return False
    with_draft = given.get(SPEED, 0.0)
    if own is None:
        measured = "this run measures them, and the next ones take the faster"
    elif own.get(SPEED, 0.0) > with_draft:
        measured = f"{own[SPEED]:.3g} tokens/s in their last run, and {with_draft:.3g} with the draft model"
    else:
        return False
    notes.append(
        f"{info.path.name}: its own layers draft in place of {draft.name}: {measured}; "
        f"--draft-type draft-simple keeps to the draft model"
    )
    return True


def keep_choice(config: EngineConfig, info: ModelInfo, governor: Governor | None) -> None:
    """Keep what a run's governor has found by its end for the target's own layers, or for a draft model.

    A draft model matters where the target has such layers. A run that is too short keeps nothing.
    """
    draft = None if config.draft is None else Path(config.draft)
    known = config.draft_types == ((MTP,) if draft is None else ("draft-simple",)) and info.has_mtp
    if not known or not isinstance(governor, RooflineGovernor):
        return
    about = governor.about
    if about.get("steps", 0) >= LEAST_STEPS:
        with suppress(InputError):  # A folder that cannot be written keeps nothing.
            store.put(_key(config, info, draft), about)
