"""The lines of text that show the statistics of a run: a summary, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spac.stats.advice import change
from spac.stats.words import counted, end, number, percent, seconds, share, size

if TYPE_CHECKING:
    from spac.stats.run_stats import RunStats


def summary(stats: RunStats) -> list[tuple[str, str]]:
    """Return the rows (subject, figures) that matter to most users."""
    text = f"{stats.generated_tokens} tokens"
    if ended := end(stats.reason, stats.prompt_tokens + stats.generated_tokens, stats.context):
        text += f", {ended}"
    where = f"all on {'the CPU' if stats.device == 'cpu' else stats.device}"
    if stats.hit_rate is not None:
        where = f"{share(vars(stats))} of the expert work, hit rate {percent(stats.hit_rate)}"
    if stats.vram_bytes:
        where += f"; {_vram(stats)} on {stats.device}"
    if stats.remote_layers:
        where += f"; {_remote(stats)}"
    return [
        (
            "speed",
            f"{number(stats.tokens_per_second)} tokens/s, first token after "
            f"{seconds(stats.time_to_first_token_s)}; {text}",
        ),
        ("computed", where),
        ("to change", change(vars(stats))),
    ]


def rows(stats: RunStats) -> list[tuple[str, str]]:
    """Return the table's rows (subject, figures) in the order in which they are shown."""
    speculation = "off"
    if stats.draft_types:
        accepted = f"acceptance {percent(stats.acceptance)}, {number(stats.tokens_per_step)} tokens/step"
        speculation = f"{', '.join(stats.draft_types)}, {_lengths(stats)}: {accepted}"
    device = stats.device + (" (not a GPU: shows the split)" if stats.device_is_simulated else "")
    ended = end(stats.reason, stats.prompt_tokens + stats.generated_tokens, stats.context)
    rows = [
        (
            "speed",
            f"{number(stats.tokens_per_second)} tokens/s, {number(stats.latency_ms_per_token)} ms/token, "
            f"{number(stats.latency_ms_per_step)} ms/step",
        ),
        (
            "prompt",
            f"{stats.prompt_tokens} tokens at {number(stats.prefill_tokens_per_second)} tokens/s, "
            f"first token after {seconds(stats.time_to_first_token_s)}, loaded in {seconds(stats.load_s)}",
        ),
        (
            "text",
            f"{stats.generated_tokens} tokens" + (f", {ended}" if ended else "") + f", seed {stats.seed}",
        ),
        ("speculation", speculation),
    ]
    if stats.n_experts:
        rows += _expert_rows(stats)
    rows += [(part["name"], _part(part)) for part in stats.devices]
    if stats.remote_layers:
        rows.append(("remote", _remote(stats)))
    memory = f", {_vram(stats)}" if stats.vram_bytes else ""
    return [*rows, ("device", f"{device}{memory}, {counted(stats.threads, 'CPU thread')}")]


def _remote(stats: RunStats) -> str:
    places = (f"{counted(n, 'layer')} on {address}" for address, n in stats.remote_layers.items())
    return ", ".join(places) + "; the figures of experts leave them out"


def _part(part: Mapping[str, Any]) -> str:
    """Return the figures of one of several devices."""
    failed = f", {part['upload_failures']} failed" if part["upload_failures"] else ""
    return (
        f"{counted(part['layers'], 'layer')}, {part['slots']} slots for {part['experts']} experts "
        f"({size(part['slot_bytes'])}), hit rate {percent(part['hit_rate'])}, "
        f"{size(part['upload_bytes'])} in {part['uploads']} uploads{failed}, "
        f"{size(part['vram_bytes'])} in use"
    )


def _vram(stats: RunStats) -> str:
    """Return the device memory in use, and its limit if there is one."""
    limit = f" of {size(stats.vram_limit)} allowed" if stats.vram_limit else ""
    return f"{size(stats.vram_bytes)}{limit}"


def _lengths(stats: RunStats) -> str:
    """Return the draft lengths and the speed that the governor expected."""
    if stats.governor != "roofline":
        return f"{stats.draft_length} tokens"
    lengths = f"0 to {stats.draft_length} tokens, mean {number(stats.draft_length_mean)}"
    if stats.predicted_tokens_per_second is None:
        return lengths
    return f"{lengths}, expected {number(stats.predicted_tokens_per_second)} tokens/s"


def _expert_rows(stats: RunStats) -> list[tuple[str, str]]:
    moved = stats.bytes_moved
    return [
        (
            "experts",
            f"{stats.slots} slots for {stats.n_experts} experts ({size(stats.slot_bytes)}), "
            f"{stats.slots_resident} in use",
        ),
        (
            "hit rate",
            f"{percent(stats.hit_rate)} of activations, "
            f"{percent(stats.hit_rate_distinct)} of distinct experts",
        ),
        ("scheduler", _scheduler(stats)),
        *([("lookahead", _lookahead(stats))] if stats.lookahead else []),
        *([("misses", _misses(stats))] if stats.miss != "cpu" else []),
        ("share", share(vars(stats))),
        (
            "moved",
            f"{size(moved['uploads'])} in {stats.uploads} uploads ({stats.evictions} evictions"
            + (f", {stats.upload_failures} failed" if stats.upload_failures else "")
            + (f", {stats.uploads_wasted} unused" if stats.uploads_wasted else "")
            + f"), {size(moved['downloads'])} to the CPU, {size(moved['joins'])} back",
        ),
        *([("disk", _disk(stats))] if stats.disk_bytes is not None else []),
        (
            "host waits",
            f"{stats.host_waits}, {seconds(stats.host_wait_s)} in all; "
            f"experts on the CPU took {seconds(stats.host_compute_s)}",
        ),
    ]


def _scheduler(stats: RunStats) -> str:
    options = "".join(f", {key}={value}" for key, value in stats.scheduler_options.items())
    text = stats.scheduler + options
    if stats.scheduler_share:
        text += f": {number(stats.scheduler_ms_per_step)} ms/step ({percent(stats.scheduler_share)})"
    if stats.prediction is not None:
        text += f", hot/cold prediction {percent(stats.prediction['accuracy'])} accurate"
    return text


def _misses(stats: RunStats) -> str:
    loaded = size(stats.bytes_moved.get("loads", 0))
    return f"{stats.miss}: {stats.misses_cpu} on the CPU, {stats.misses_loaded} loaded ({loaded})"


def _disk(stats: RunStats) -> str:
    read = stats.disk_bytes or 0
    return f"{size(read)} read, {size(read // max(1, stats.generated_tokens))}/token"


def _lookahead(stats: RunStats) -> str:
    layers = counted(stats.lookahead, "layer")
    return f"{layers}: {percent(stats.foreseen_right)} of {stats.foreseen} predictions were right"
