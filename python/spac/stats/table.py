"""The lines of text that show the statistics of a run: three lines, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spac.stats.advice import change
from spac.stats.words import counted, end, number, percent, ratio, seconds, share, size

if TYPE_CHECKING:
    from spac.stats.run_stats import RunStats


def summary(stats: RunStats) -> list[tuple[str, str]]:
    """Return the rows (subject, figures) that matter to most users."""
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
            f"{seconds(stats.time_to_first_token_s)}; {_text(stats)}",
        ),
        ("computed", where),
        ("to change", change(vars(stats))),
    ]


def rows(stats: RunStats) -> list[tuple[str, str]]:
    """Return the table's rows (subject, figures): what a person can act on, and what to change."""
    rows = [
        ("speed", f"{number(stats.tokens_per_second)} tokens/s; {_text(stats)}, seed {stats.seed}"),
        (
            "prompt",
            f"{number(stats.prefill_tokens_per_second)} tokens/s, first token after "
            f"{seconds(stats.time_to_first_token_s)}; {stats.prompt_tokens} tokens, "
            f"loaded in {seconds(stats.load_s)}",
        ),
        ("draft", _draft(stats)),
    ]
    if stats.n_experts:
        rows += _expert_rows(stats)
    memory = f", {_vram(stats)}" if stats.vram_bytes else ""
    simulated = " (not a GPU: shows the split)" if stats.device_is_simulated else ""
    rows.append(("device", f"{stats.device}{simulated}{memory}, {counted(stats.threads, 'CPU thread')}"))
    rows += [(part["name"], _part(part)) for part in stats.devices]
    if stats.remote_layers:
        rows.append(("remote", _remote(stats)))
    return [*rows, ("to change", change(vars(stats)))]


def _expert_rows(stats: RunStats) -> list[tuple[str, str]]:
    parts = (
        ("CPU experts", stats.host_compute_s), ("waits for the device", stats.host_wait_s),
        ("scheduler", stats.scheduler_s), ("copies beside it", stats.upload_s),
    )  # fmt: skip
    times = (f"{name} {percent(ratio(took, stats.decode_s))}" for name, took in parts)
    n_bytes = sum(n for name, n in stats.bytes_moved.items() if not name.startswith("prompt"))
    failed = f"; {counted(stats.upload_failures, 'copy')} failed" if stats.upload_failures else ""
    disk = "" if stats.disk_bytes is None else f", {_per_token(stats, stats.disk_bytes)} read from disk"
    options = "".join(f", {key}={value}" for key, value in stats.scheduler_options.items())
    return [
        ("hit rate", f"{percent(stats.hit_rate)}; {share(vars(stats))} of the expert work"),
        ("step time", ", ".join(times)),
        ("copied", f"{_per_token(stats, n_bytes)}{disk}{failed}"),
        (
            "slots",
            f"{stats.slots_resident} of {stats.slots} in use for {stats.n_experts} experts "
            f"({size(stats.slot_bytes)}), by {stats.scheduler}{options}",
        ),
    ]


def _text(stats: RunStats) -> str:
    ended = end(stats.reason, stats.prompt_tokens + stats.generated_tokens, stats.context)
    return counted(stats.generated_tokens, "token") + (f", {ended}" if ended else "")


def _per_token(stats: RunStats, n_bytes: int) -> str:
    return f"{size(n_bytes / max(1, stats.generated_tokens))}/token"


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


def _draft(stats: RunStats) -> str:
    if not stats.draft_types:
        return "off"
    lengths = {int(k): n for k, n in stats.draft_lengths.items()}
    mean = ratio(sum(k * n for k, n in lengths.items()), sum(lengths.values()))
    chosen = f"0 to {stats.draft_length} tokens, mean {number(mean)}"
    return (
        f"{chosen if stats.governor == 'roofline' else f'{stats.draft_length} tokens'} by "
        f"{', '.join(stats.draft_types)}; acceptance {percent(stats.acceptance)}, "
        f"{number(stats.tokens_per_step)} tokens/step"
    )
