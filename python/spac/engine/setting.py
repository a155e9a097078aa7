"""The setting of an engine, as the statistics of its generations show it."""

from __future__ import annotations

from typing import Any

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine.draft_lengths import DraftLengths
from spac.engine.expert_cache import ExpertCache
from spac.model.pair import ModelPair
from spac.stats import Setting


def n_experts(experts: _core.Experts | None) -> int:
    """Return the number of experts in all layers; 0 without the split."""
    return sum(layer.n_expert for layer in experts.layers) if experts is not None else 0


def mean_expert_bytes(experts: _core.Experts | None) -> int:
    """Return the mean size of an expert in bytes; 0 without the split."""
    layers = experts.layers if experts is not None else []
    return sum(layer.n_expert * layer.expert_bytes for layer in layers) // max(1, n_experts(experts))


def _parts(pair: ModelPair) -> tuple[dict[str, Any], ...]:
    """Return the parts of the devices that share the layers with experts; none for one device."""
    parts = pair.experts.devices if pair.experts is not None else []
    limits = {device.name: device.memory.limit or None for device in pair.placement.devices}
    return tuple(
        {
            "name": each.name,
            "layers": each.n_layer,
            "experts": each.n_experts,
            "slots": each.slots.n_slots,
            "slot_bytes": each.slots.bytes,
            "vram_bytes": 0,
            "vram_limit": limits[each.name],
        }
        for each in (parts if len(parts) > 1 else [])
    )


def setting_of(
    config: EngineConfig,
    pair: ModelPair,
    expert_cache: ExpertCache,
    lengths: DraftLengths,
    sampling: SamplingConfig,
    load_s: float,
) -> Setting:
    """Return the setting of a generation with this sampling. `load_s` is the time of loading in seconds."""
    experts, device = pair.experts, pair.placement.device
    slots = experts.slots if experts is not None else None
    return Setting(
        target=str(config.target),
        draft=str(config.draft) if pair.draft is not None else None,
        device=pair.placement.device_names,
        device_is_simulated=device is not None and device.shares_host_cores,
        scheduler=expert_cache.scheduler_name,
        draft_types=config.draft_types,
        draft_length=config.longest_draft if config.draft_types else 0,
        governor=lengths.governor.name if lengths.governor is not None else "none",
        expert_bytes=mean_expert_bytes(experts),
        paged=pair.placement.paged,
        lookahead=expert_cache.lookahead,
        remote_layers=pair.placement.remote.by_server if pair.placement.remote is not None else {},
        threads=pair.placement.threads,
        context=pair.sequence_context,
        seed=sampling.seed or 0,
        temp=sampling.temp,
        n_experts=n_experts(experts),
        slots=slots.n_slots if slots is not None else 0,
        slot_bytes=slots.bytes if slots is not None else 0,
        devices=_parts(pair),
        vram_limit=sum(each.memory.limit for each in pair.placement.devices) or None,
        scheduler_options=expert_cache.scheduler_options,
        load_s=load_s,
    )
