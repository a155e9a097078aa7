"""The table that shows the statistics of a run as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spac.stats.words import end

if TYPE_CHECKING:
    from spac.stats.run_stats import RunStats


def rows(stats: RunStats) -> list[tuple[str, str]]:
    """Return the table's rows (subject, figures) in the order in which they are shown."""
    speculation = ", ".join(stats.draft_types) + f", {_lengths(stats)}" if stats.draft_types else "off"
    device = stats.device + (" (not a GPU: shows the split)" if stats.device_is_stand_in else "")
    ended = end(stats.reason, stats.prompt_tokens + stats.generated_tokens, stats.context)
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
            f"{stats.generated_tokens} tokens" + (f", {ended}" if ended else "") + f", seed {stats.seed}",
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
    threads = "thread" if stats.threads == 1 else "threads"
    return [*rows, ("device", f"{device}{_vram(stats)}, {stats.threads} CPU {threads}")]


def _vram(stats: RunStats) -> str:
    """Return the device memory in use, and its limit if there is one."""
    if not stats.vram_bytes:
        return ""
    limit = f" of {_bytes(stats.vram_limit)} allowed" if stats.vram_limit else ""
    return f", {_bytes(stats.vram_bytes)}{limit}"


def _lengths(stats: RunStats) -> str:
    """Return the draft lengths and the speed that the governor expected."""
    if stats.governor != "roofline":
        return f"{stats.draft_length} tokens"
    lengths = f"0 to {stats.draft_length} tokens, mean {_number(stats.draft_length_mean)}"
    if stats.predicted_tokens_per_second is None:
        return lengths
    return f"{lengths}, expected {_number(stats.predicted_tokens_per_second)} tokens/s"


def _expert_rows(stats: RunStats) -> list[tuple[str, str]]:
    moved = stats.bytes_moved
    return [
        (
            "experts",
            f"{stats.slots} slots for {stats.n_experts} experts ({_bytes(stats.slot_bytes)}), "
            f"{stats.slots_resident} resident",
        ),
        (
            "hit rate",
            f"{_percent(stats.hit_rate)} of activations, "
            f"{_percent(stats.hit_rate_distinct)} of distinct experts",
        ),
        ("scheduler", _scheduler(stats)),
        *([("lookahead", _lookahead(stats))] if stats.lookahead else []),
        ("share", f"GPU {_percent(stats.gpu_share)}, CPU {_percent(stats.cpu_share)}"),
        (
            "moved",
            f"{_bytes(moved['uploads'])} in {stats.uploads} uploads ({stats.evictions} evictions"
            + (f", {stats.upload_failures} failed" if stats.upload_failures else "")
            + (f", {stats.uploads_wasted} unused" if stats.uploads_wasted else "")
            + f"), {_bytes(moved['downloads'])} to the CPU, {_bytes(moved['joins'])} back",
        ),
        *([("disk", _disk(stats))] if stats.disk_bytes is not None else []),
        (
            "host waits",
            f"{stats.host_waits}, {_seconds(stats.host_wait_s)} in all; "
            f"experts on the CPU took {_seconds(stats.host_compute_s)}",
        ),
    ]


def _scheduler(stats: RunStats) -> str:
    options = "".join(f", {key}={value}" for key, value in stats.scheduler_options.items())
    text = stats.scheduler + options
    if stats.scheduler_share:
        text += f": {_number(stats.scheduler_ms_per_step)} ms/step ({_percent(stats.scheduler_share)})"
    if stats.prediction is not None:
        text += f", hot/cold prediction {_percent(stats.prediction['accuracy'])} accurate"
    return text


def _disk(stats: RunStats) -> str:
    read = stats.disk_bytes or 0
    return f"{_bytes(read)} read, {_bytes(read // max(1, stats.generated_tokens))}/token"


def _lookahead(stats: RunStats) -> str:
    layers = f"{stats.lookahead} layer{'s' if stats.lookahead > 1 else ''}"
    return f"{layers}: {_percent(stats.foreseen_right)} of {stats.foreseen} predictions were right"


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
