"""The statistics of one generation as data.

`RunStats.to_json()` is stable. Within one `schema`, a field is never renamed or given another meaning, but
new fields may be added. Rates are from 0 to 1. Times are in seconds unless the name says `_ms`, and sizes are
in bytes. A figure that a run cannot have (acceptance without a draft, a hit rate without experts) is null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from spac.stats.scheduler_time import SchedulerTime
from spac.stats.table import rows, summary
from spac.stats.words import ratio

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The models, the device and the options of a run."""

    target: str
    draft: str | None
    device: str  # names of the devices, with commas between them, or "cpu" for plain llama.cpp
    device_is_simulated: bool
    scheduler: str
    draft_types: tuple[str, ...]
    draft_length: int
    threads: int
    context: int
    seed: int
    temp: float
    n_experts: int  # experts of the target, all layers together
    slots: int  # experts that the device can hold
    slot_bytes: int  # device memory of the slots
    load_s: float  # from the start of loading to the first possible prompt
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)  # options other than the defaults
    governor: str = "none"  # name of the governor
    expert_bytes: int = 0  # mean bytes of an expert
    devices: Sequence[Mapping[str, Any]] = ()
    """The parts of several devices, as docs/statistics.md has them; empty for one device."""
    vram_bytes: int = 0  # bytes of this process's buffers on the devices: weights, contexts, slots, the rest
    vram_limit: int | None = None  # limit for vram_bytes, from --vram-limit
    paged: bool = False  # True if the experts exceed the host memory and are read from the file on demand
    lookahead: int = 0  # number of layers ahead for which experts are loaded while a step runs
    remote_layers: Mapping[str, int] = field(default_factory=dict)  # whole layers on RPC servers, by address

    def with_memory(self, in_use: Callable[[str], int]) -> Setting:
        """Return this setting with the memory in use that `in_use` gives for the names of devices."""
        parts = tuple({**part, "vram_bytes": in_use(part["name"])} for part in self.devices)
        return replace(self, vram_bytes=in_use(self.device), devices=parts)


@dataclass
class Meter:
    """The raw counts of one generation, which are filled while it runs."""

    reason: str = ""
    prompt_tokens: int = 0
    prefilled_tokens: int = 0  # less than the prompt if its beginning was in the cache
    generated_tokens: int = 0
    first_tokens: int = 0  # the tokens that a prompt's own logits chose, before the first step
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0
    step_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    resident: int = 0
    experts: dict[str, int] = field(default_factory=dict)  # the mechanism's counters over the decode steps
    prompt_experts: dict[str, int] = field(default_factory=dict)  # these counters over prefill
    scheduler_time: SchedulerTime = field(default_factory=SchedulerTime)
    lengths: Counter[int] = field(default_factory=Counter)
    """The steps by the draft length that was chosen; empty without speculation, and for several texts."""


@dataclass(frozen=True, kw_only=True)
class RunStats(Setting):
    """The statistics of one generation; the expert figures are of decode steps and leave out the prompt."""

    schema: int = SCHEMA
    reason: str  # reason for the end: "stop", "length", "cancelled"; "" while it runs
    # speed
    tokens_per_second: float | None  # tokens per second of the steps, without the prompt and its first token
    prefill_tokens_per_second: float | None
    time_to_first_token_s: float | None
    prefill_s: float
    decode_s: float
    # tokens
    prompt_tokens: int
    prefilled_tokens: int  # evaluated prompt tokens; the others were in the context or restored to it
    generated_tokens: int
    # speculation
    acceptance: float | None  # share of drafted tokens that the target accepted
    tokens_per_step: float | None
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    draft_s: float
    verify_s: float
    sample_s: float
    scheduler_s: float  # observe, solve, submit
    draft_lengths: Mapping[str, int]  # number of steps for each chosen length
    # experts
    hit_rate: float | None  # share of activations (token, expert) whose expert was resident
    hit_rate_distinct: float | None  # share of distinct (layer, expert) per step that were resident
    gpu_share: float | None  # share of activations computed on the device: resident and loaded experts
    cpu_share: float | None
    activations: int
    uploads: int
    upload_failures: int
    upload_s: float  # time of the copies that `uploads` and `upload_failures` count
    uploads_wasted: int  # uploads whose expert was evicted again without a use
    evictions: int
    bytes_moved: Mapping[str, int]
    """The bytes of uploads (experts), downloads (ids, block inputs) and joins (rows from the CPU).

    Loads are experts that were copied to the device within their layer (`--miss load`).
    For prefill streaming, prompt_uploads are copied from the host, and prompt_copies from slots.
    """
    disk_bytes: int | None
    """The bytes that this process read from disks while decoding; None if host memory holds all experts."""
    host_waits: int
    host_wait_s: float
    host_compute_s: float
    slots_resident: int

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens that were in the context or restored to it."""
        return max(0, self.prompt_tokens - self.prefilled_tokens)

    @classmethod
    def of(cls, setting: Setting, meter: Meter) -> RunStats:
        """Return the statistics that follow from the counts of `meter`."""
        meter.scheduler_time.complete()
        counts = Counter(meter.experts)
        activations = counts["activations"]
        gpu_share = ratio(counts["activations_hit"] + counts["activations_loaded"], activations)
        n_decoded = max(0, meter.generated_tokens - meter.first_tokens)
        known = {each.name: getattr(setting, each.name) for each in fields(Setting)}
        known["devices"] = [_part(part, counts) for part in setting.devices]
        return cls(
            **known,
            reason=meter.reason,
            tokens_per_second=ratio(n_decoded, meter.decode_s),
            prefill_tokens_per_second=ratio(meter.prefilled_tokens, meter.prefill_s) or None,
            time_to_first_token_s=meter.first_token_s if meter.generated_tokens else None,
            prefill_s=meter.prefill_s,
            decode_s=meter.decode_s,
            prompt_tokens=meter.prompt_tokens,
            prefilled_tokens=meter.prefilled_tokens,
            generated_tokens=meter.generated_tokens,
            acceptance=ratio(meter.accepted, meter.drafted),
            tokens_per_step=ratio(meter.step_tokens, meter.steps),
            steps=meter.steps,
            drafted_tokens=meter.drafted,
            accepted_tokens=meter.accepted,
            draft_s=meter.draft_s,
            verify_s=meter.verify_s,
            sample_s=meter.sample_s,
            scheduler_s=meter.scheduler_time.ns / 1e9,
            draft_lengths={str(k): n for k, n in sorted(meter.lengths.items())},
            hit_rate=ratio(counts["activations_hit"], activations),
            hit_rate_distinct=ratio(counts["distinct_hit"], counts["distinct"]),
            gpu_share=gpu_share,
            cpu_share=None if gpu_share is None else 1 - gpu_share,
            activations=activations,
            uploads=counts["uploads"],
            upload_failures=counts["upload_failures"],
            upload_s=counts["upload_ns"] / 1e9,
            uploads_wasted=counts["uploads_wasted"],
            evictions=counts["evictions"],
            bytes_moved={
                "uploads": counts["upload_bytes"],
                "loads": counts["load_bytes"],
                "downloads": counts["download_bytes"],
                "joins": counts["join_bytes"],
                "prompt_uploads": meter.prompt_experts.get("stream_bytes", 0),
                "prompt_copies": meter.prompt_experts.get("stream_slot_bytes", 0),
            },
            disk_bytes=counts["disk_bytes"] if setting.paged else None,
            host_waits=counts["host_waits"],
            host_wait_s=counts["host_wait_ns"] / 1e9,
            host_compute_s=counts["host_compute_ns"] / 1e9,
            slots_resident=meter.resident,
        )

    def to_json(self) -> str:
        """Return one line of JSON with every field."""
        return json.dumps(asdict(self))

    def summary(self) -> str:
        """Return three lines of text: the speed, what computed it, and what to change."""
        return _lines(summary(self))

    def table(self) -> str:
        """Return the most important figures as lines of text."""
        return _lines(rows(self))


def _lines(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


_OF_DEVICES = ("activations", "activations_hit", "uploads", "upload_bytes", "upload_failures", "evictions")


def _part(part: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures of one device."""
    of = {name: counts[f"{part['name']}.{name}"] for name in _OF_DEVICES}
    return {**part, **of, "hit_rate": ratio(of["activations_hit"], of["activations"])}
