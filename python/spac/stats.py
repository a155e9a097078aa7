"""What one generation did and cost, as data.

`RunStats.to_json()` is stable: a field is never renamed or given another meaning within one `schema`; new
ones may be added. Rates are 0 to 1, times in seconds unless the name says `_ms`, sizes in bytes. A figure
that this run cannot have (acceptance without a draft, a hit rate without experts) is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

SCHEMA = 1


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None where there is no whole."""
    return part / whole if whole else None


@dataclass(frozen=True)
class Setting:
    """What ran, and with what."""

    target: str
    draft: str | None
    device: str  # name of the device, or "cpu" for plain llama.cpp
    device_is_stand_in: bool
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


@dataclass
class Meter:
    """Raw counts of one generation; filled while it runs."""

    reason: str = ""
    prompt_tokens: int = 0
    prefilled_tokens: int = 0  # less than the prompt where its beginning was still in the cache
    generated_tokens: int = 0
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
    step_hit_rates: float = 0.0  # sum over the steps that had activations
    counted_steps: int = 0
    resident: int = 0
    experts: dict[str, int] = field(default_factory=dict)  # the mechanism's counters over the decode steps


@dataclass(frozen=True)
class RunStats:
    """The statistics of one generation. The expert figures are of decode steps; the prompt is not in them."""

    schema: int
    reason: str  # why it ended: "stop", "length", "cancelled", or "" while it runs
    # speed
    tokens_per_second: float | None  # generated tokens per second of decoding, prompt excluded
    latency_ms_per_token: float | None
    latency_ms_per_step: float | None
    prefill_tokens_per_second: float | None
    time_to_first_token_s: float | None
    load_s: float
    prefill_s: float
    decode_s: float
    # tokens
    prompt_tokens: int
    prefilled_tokens: int  # of the prompt, evaluated; the others were still in the context
    generated_tokens: int
    # speculation
    acceptance: float | None  # drafted tokens that the target accepted
    tokens_per_step: float | None
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    draft_s: float
    verify_s: float
    sample_s: float
    # experts
    hit_rate: float | None  # of activations (token, expert), computed on the device
    hit_rate_distinct: float | None  # of distinct (layer, expert) per step, resident
    hit_rate_step: float | None  # mean over the steps of each step's hit rate of activations
    gpu_share: float | None  # of activations
    cpu_share: float | None
    activations: int
    uploads: int
    upload_failures: int
    evictions: int
    bytes_moved: Mapping[
        str, int
    ]  # uploads (experts), downloads (ids, block inputs), joins (rows from the CPU)
    host_waits: int
    host_wait_s: float
    host_compute_s: float
    n_experts: int
    slots: int
    slots_resident: int
    slot_bytes: int
    # setting
    target: str
    draft: str | None
    device: str
    device_is_stand_in: bool
    scheduler: str
    draft_types: tuple[str, ...]
    draft_length: int
    threads: int
    context: int
    seed: int
    temp: float

    @classmethod
    def of(cls, setting: Setting, meter: Meter) -> RunStats:
        """The derived figures of what `meter` counted."""
        counts = meter.experts.get
        activations = counts("activations", 0)
        hit_rate = ratio(counts("activations_hit", 0), activations)
        per_token, per_step = (
            ratio(meter.decode_s, meter.generated_tokens),
            ratio(meter.decode_s, meter.steps),
        )
        return cls(
            schema=SCHEMA,
            reason=meter.reason,
            tokens_per_second=ratio(meter.generated_tokens, meter.decode_s),
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
            hit_rate=hit_rate,
            hit_rate_distinct=ratio(counts("distinct_hit", 0), counts("distinct", 0)),
            hit_rate_step=ratio(meter.step_hit_rates, meter.counted_steps),
            gpu_share=hit_rate,
            cpu_share=None if hit_rate is None else 1 - hit_rate,
            activations=activations,
            uploads=counts("uploads", 0),
            upload_failures=counts("upload_failures", 0),
            evictions=counts("evictions", 0),
            bytes_moved={
                "uploads": counts("upload_bytes", 0),
                "downloads": counts("download_bytes", 0),
                "joins": counts("join_bytes", 0),
            },
            host_waits=counts("host_waits", 0),
            host_wait_s=counts("host_wait_ns", 0) / 1e9,
            host_compute_s=counts("host_compute_ns", 0) / 1e9,
            slots_resident=meter.resident,
            **asdict(setting),
        )

    def to_json(self) -> str:
        """One line of JSON with every field."""
        return json.dumps(asdict(self))

    def table(self) -> str:
        """The figures that a reader wants first, as lines of text."""
        return "\n".join(f"{name:<11} {value}" for name, value in _rows(self))


def _rows(stats: RunStats) -> list[tuple[str, str]]:
    speculation = (
        f"{', '.join(stats.draft_types)}, {stats.draft_length} tokens" if stats.draft_types else "off"
    )
    device = stats.device + (" (not a GPU: shows the split)" if stats.device_is_stand_in else "")
    rows = [
        (
            "speed",
            f"{_number(stats.tokens_per_second)} tokens/s, {_number(stats.latency_ms_per_token)} ms/token, "
            f"{_number(stats.latency_ms_per_step)} ms/step",
        ),
        (
            "prompt",
            f"{stats.prompt_tokens} tokens at {_number(stats.prefill_tokens_per_second)} tokens/s, "
            f"first token after {_seconds(stats.time_to_first_token_s)}, loaded in {_seconds(stats.load_s)}",
        ),
        (
            "text",
            f"{stats.generated_tokens} tokens, ended by {stats.reason or 'nothing yet'}, seed {stats.seed}",
        ),
        (
            "speculation",
            f"{speculation}"
            + (
                f": acceptance {_percent(stats.acceptance)}, {_number(stats.tokens_per_step)} tokens/step"
                if stats.draft_types
                else ""
            ),
        ),
    ]
    if stats.n_experts:
        rows += _expert_rows(stats)
    return [*rows, ("device", f"{device}, {stats.threads} CPU threads")]


def _expert_rows(stats: RunStats) -> list[tuple[str, str]]:
    moved = stats.bytes_moved
    return [
        (
            "experts",
            f"{stats.slots} slots for {stats.n_experts} experts ({_bytes(stats.slot_bytes)}), "
            f"{stats.slots_resident} resident, scheduler {stats.scheduler}",
        ),
        (
            "hit rate",
            f"{_percent(stats.hit_rate)} of activations, "
            f"{_percent(stats.hit_rate_distinct)} of distinct experts",
        ),
        ("share", f"GPU {_percent(stats.gpu_share)}, CPU {_percent(stats.cpu_share)}"),
        (
            "moved",
            f"{_bytes(moved['uploads'])} in {stats.uploads} uploads ({stats.evictions} evictions"
            + (f", {stats.upload_failures} failed" if stats.upload_failures else "")
            + f"), {_bytes(moved['downloads'])} to the CPU, {_bytes(moved['joins'])} back",
        ),
        (
            "host waits",
            f"{stats.host_waits}, {_seconds(stats.host_wait_s)} in all; "
            f"experts on the CPU took {_seconds(stats.host_compute_s)}",
        ),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{_number(value * 1e3)} ms" if value < 1 else f"{value:.1f} s"


def _bytes(value: int) -> str:
    size = float(value)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{_number(size)} {unit}"
        size /= 1000
    return f"{_number(size)} TB"
