"""The choice of a target's own layers for its drafts (`--draft-type auto`), with what its runs have shown."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from spac.config import EngineConfig
from spac.costs import store
from spac.errors import InputError
from spac.governor import Governor, RooflineGovernor
from spac.model.gguf.info import ModelInfo

MTP = "draft-mtp"
LEAST_STEPS = 64
"""The fewest steps after which a run's choice counts."""
RECENT_S = 7 * 86_400
"""The seconds for which a run's choice counts: texts and programs change."""


def with_own_drafts(config: EngineConfig, info: ModelInfo, notes: list[str]) -> EngineConfig:
    """Return the configuration that names the way to draft of the target that `info` describes.

    Without a draft model, layers of the target draft for it (multi-token prediction). They are not loaded if
    the governor stopped drafting with them in the last run on this machine. A line of `notes` says so.
    Without a governor, nobody could find out whether they pay, so only a fixed length loads them.
    """
    asks = config.drafts_auto and config.draft is None and config.longest_draft > 0
    if not asks or not info.has_mtp or config.rpc or config.cpu_expert_layers is not None:
        return config
    if not config.is_governed and not config.draft_length:
        return config
    if config.is_governed and not _paid(config, info, notes):
        notes.append(
            f"{info.path.name}: its layers that draft for it are not loaded, for they did not pay in the "
            f"last run here: --draft-type {MTP} loads them"
        )
        return config
    return replace(config, draft_type=(MTP,))


def _key(config: EngineConfig, info: ModelInfo) -> store.Key:
    return store.Key.of("drafts", device=config.device, target=info.path)


def _paid(config: EngineConfig, info: ModelInfo, notes: list[str]) -> bool:
    """Return False if the last run that counts had stopped drafting, and was less than `RECENT_S` ago."""
    with suppress(InputError, OSError):
        key = _key(config, info)
        if (entry := store.get(key, notes)) is not None and time.time() - key.path.stat().st_mtime < RECENT_S:
            return entry.value.get("draft_length") != 0
    return True


def keep_choice(config: EngineConfig, info: ModelInfo, governor: Governor | None) -> None:
    """Keep what a run's governor has chosen at its end for the target's own layers, after enough steps."""
    if config.draft_types != (MTP,) or config.draft is not None or not isinstance(governor, RooflineGovernor):
        return
    about = governor.about
    if about.get("steps", 0) >= LEAST_STEPS:
        with suppress(InputError):  # A folder that cannot be written keeps nothing.
            store.put(_key(config, info), about)
