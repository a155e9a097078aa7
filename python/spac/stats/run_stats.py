"""The statistics of one generation as data.

`RunStats.to_json()` is stable. Within one `schema`, a field is never renamed or given another meaning, but
new fields may be added. Rates are from 0 to 1. Times are in seconds unless the name says `_ms`, and sizes are
in bytes. A figure that a run cannot have (acceptance without a draft, a hit rate without experts) is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spac.governor import ChosenLengths
from spac.stats.prediction import PredictionStats
from spac.stats.table import rows, summary

SCHEMA = 1


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if the whole is 0."""
    return part / whole if whole else None


@dataclass(frozen=True)
class Part:
    """One device's part of a model whose layers are on several devices."""

    name: str
    layers: int  # MoE layers on it
    experts: int  # experts of these layers
    slots: int
    slot_bytes: int
    vram_bytes: int = 0  # bytes of this process's buffers on it
    vram_limit: int | None = None


@dataclass(frozen=True)
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
    devices: tuple[Part, ...] = ()  # the parts of several devices; empty for one device
    vram_bytes: int = 0  # bytes of this process's buffers on the devices
    vram_limit: int | None = None  # limit for vram_bytes
    paged: bool = False  # True if the experts exceed the host memory
    pinned_bytes: int = 0  # bytes of experts in host memory that the device's driver has pinned
    pageable_bytes: int = 0  # bytes of the other experts in host memory
    stream_batch: int = 0  # tokens of the smallest graph that uses prefill streaming; 0 if none does
    lookahead: int = 0  # number of layers ahead for which experts are loaded while a step runs
    miss: str = "cpu"  # where misses are computed: "cpu" or "load"
    remote_layers: Mapping[str, int] = field(default_factory=dict)  # whole layers on RPC servers, by address

    def with_memory(self, in_use: Callable[[str], int]) -> Setting:
        """Return this setting with the memory in use that `in_use` gives for the names of devices."""
        parts = tuple(replace(part, vram_bytes=in_use(part.name)) for part in self.devices)
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
    prediction_stats: PredictionStats = field(default_factory=PredictionStats)
    lengths: ChosenLengths | None = None  # None without speculation, and with several generations at once


@dataclass(frozen=True)
class RunStats:
    """The statistics of one generation; the expert figures are of decode steps and leave out the prompt."""

    schema: int
    reason: str  # reason for the end: "stop", "length", "cancelled"; "" while it runs
    # speed
    tokens_per_second: float | None  # tokens per second of the steps, without the prompt and its first token
    latency_ms_per_token: float | None
    latency_ms_per_step: float | None
    prefill_tokens_per_second: float | None
    time_to_first_token_s: float | None
    load_s: float
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
    # the governor
    draft_length_mean: float | None  # mean of the chosen lengths
    draft_lengths: Mapping[str, int]  # number of steps for each chosen length
    predicted_tokens_per_second: float | None  # expected for the steps with a governor's expectation
    # experts
    hit_rate: float | None  # share of activations (token, expert) whose expert was resident
    hit_rate_distinct: float | None  # share of distinct (layer, expert) per step that were resident
    gpu_share: float | None  # share of activations computed on the device: resident and loaded experts
    cpu_share: float | None
    activations: int
    uploads: int
    upload_failures: int
    evictions: int
    bytes_moved: Mapping[str, int]
    """The bytes of uploads (experts), downloads (ids, block inputs) and joins (rows from the CPU).

    Loads are experts that were copied to the device within their layer (`miss`).
    For prefill streaming, prompt_uploads are copied from the host, and prompt_copies from slots.
    """
    disk_bytes: int | None
    """The bytes that this process read from disks while decoding; None if host memory holds all experts."""
    uploads_wasted: int  # uploads whose expert was evicted again without a use
    evictions_early: int  # evictions of experts that the next execution of their layer used
    upload_s: float  # time of the copies that `uploads` and `upload_failures` count
    misses_cpu: int  # distinct (layer, expert) per step that were not resident and that the CPU computed
    misses_loaded: int  # those that were copied to the device within their layer instead
    miss_load_s: float  # time of these copies
    prediction: Mapping[str, float | None] | None  # see PredictionStats.prediction
    reuse: float | None  # activations per distinct (layer, expert) of a step
    host_waits: int
    host_wait_s: float
    host_compute_s: float
    n_experts: int
    slots: int
    slots_resident: int
    foreseen: int  # (token, expert) pairs that lookahead predicted
    foreseen_right: float | None  # share of `foreseen` that the routers chose
    slot_bytes: int
    vram_bytes: int  # bytes of this process's buffers on the devices: weights, contexts, slots and the rest
    paged: bool  # True if the experts exceed the host memory and are read from the file on demand
    pinned_bytes: int  # bytes of experts in host memory that the device's driver has pinned
    pageable_bytes: int  # bytes of the others; their copies use a staging buffer or wait for the driver
    vram_limit: int | None  # limit for `vram_bytes`, from --vram-limit
    # scheduling: observe, solve, submit
    scheduler_s: float
    scheduler_ms_per_step: float | None
    scheduler_share: float | None  # share of the decode time
    # setting
    target: str
    draft: str | None
    device: str
    devices: Sequence[Mapping[str, Any]]
    """The parts of several devices, as `Part`, with the uploads and the hit rate of each; empty for one."""
    device_is_simulated: bool
    scheduler: str
    scheduler_options: Mapping[str, Any]
    draft_types: tuple[str, ...]
    draft_length: int
    governor: str
    expert_bytes: int
    stream_batch: int
    lookahead: int
    miss: str
    remote_layers: Mapping[str, int]
    threads: int
    context: int
    seed: int
    temp: float

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens that were in the context or restored to it."""
        return max(0, self.prompt_tokens - self.prefilled_tokens)

    @classmethod
    def of(cls, setting: Setting, meter: Meter) -> RunStats:
        """Return the statistics that follow from the counts of `meter`."""
        meter.prediction_stats.complete()
        counts = meter.experts.get
        activations, prediction_stats = counts("activations", 0), meter.prediction_stats
        scheduler_s = prediction_stats.scheduler_ns / 1e9
        scheduler_step = ratio(scheduler_s, meter.steps)
        hit_rate = ratio(counts("activations_hit", 0), activations)
        on_device = counts("activations_hit", 0) + counts("activations_loaded", 0)
        gpu_share = ratio(on_device, activations)
        n_decoded = max(0, meter.generated_tokens - meter.first_tokens)
        per_token = ratio(meter.decode_s, n_decoded)
        per_step = ratio(meter.decode_s, meter.steps)
        return cls(
            schema=SCHEMA,
            reason=meter.reason,
            tokens_per_second=ratio(n_decoded, meter.decode_s),
            latency_ms_per_token=None if per_token is None else per_token * 1e3,
            latency_ms_per_step=None if per_step is None else per_step * 1e3,
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
            **_governed(meter.lengths),
            hit_rate=hit_rate,
            hit_rate_distinct=ratio(counts("distinct_hit", 0), counts("distinct", 0)),
            gpu_share=gpu_share,
            cpu_share=None if gpu_share is None else 1 - gpu_share,
            activations=activations,
            uploads=counts("uploads", 0),
            upload_failures=counts("upload_failures", 0),
            evictions=counts("evictions", 0),
            bytes_moved={
                "uploads": counts("upload_bytes", 0),
                "loads": counts("load_bytes", 0),
                "downloads": counts("download_bytes", 0),
                "joins": counts("join_bytes", 0),
                "prompt_uploads": meter.prompt_experts.get("stream_bytes", 0),
                "prompt_copies": meter.prompt_experts.get("stream_slot_bytes", 0),
            },
            disk_bytes=counts("disk_bytes", 0) if setting.paged else None,
            uploads_wasted=counts("uploads_wasted", 0),
            evictions_early=counts("evictions_early", 0),
            upload_s=counts("upload_ns", 0) / 1e9,
            misses_cpu=counts("misses_cpu", 0),
            misses_loaded=counts("misses_loaded", 0),
            miss_load_s=counts("load_ns", 0) / 1e9,
            prediction=prediction_stats.prediction,
            reuse=ratio(activations, counts("distinct", 0)),
            scheduler_s=scheduler_s,
            scheduler_ms_per_step=None if scheduler_step is None else scheduler_step * 1e3,
            scheduler_share=ratio(scheduler_s, meter.decode_s),
            host_waits=counts("host_waits", 0),
            host_wait_s=counts("host_wait_ns", 0) / 1e9,
            host_compute_s=counts("host_compute_ns", 0) / 1e9,
            slots_resident=meter.resident,
            foreseen=counts("foreseen", 0),
            foreseen_right=ratio(counts("foreseen_right", 0), counts("foreseen", 0)),
            **{**asdict(setting), "devices": [_part(part, meter.experts) for part in setting.devices]},
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


def _part(part: Part, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures of one device."""
    of = {name: counts.get(f"{part.name}.{name}", 0) for name in _OF_DEVICES}
    rate = ratio(of["activations_hit"], of["activations"])
    return {**asdict(part), **of, "hit_rate": rate}


def _governed(chosen: ChosenLengths | None) -> dict[str, Any]:
    """Return the fields of RunStats on the chosen draft lengths."""
    lengths = chosen.lengths if chosen is not None else {}
    expected = ratio(chosen.expected_tokens, chosen.expected_s) if chosen is not None else None
    return {
        "draft_length_mean": ratio(sum(k * n for k, n in lengths.items()), sum(lengths.values())),
        "draft_lengths": {str(k): n for k, n in sorted(lengths.items())},
        "predicted_tokens_per_second": expected,
    }
