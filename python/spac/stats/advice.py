"""Lines for the user after a run: a verdict, and advice on what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spac.machine.device_memory import size
from spac.stats.words import number, percent, seconds, share

ENOUGH_STEPS = 64
UNUSED_SHARE = 0.9
LOW_ACCEPTANCE = 0.3
HIGH_CPU_SHARE = 0.2


def missed_budget(budget_ms: float, plain_s: float, first_token_s: float | None) -> str:
    """Return a note that no draft length meets the latency budget; "" if one does.

    `plain_s` is the time of a step without a draft, `first_token_s` that of the first token with its prompt.
    """
    if plain_s * 1e3 > budget_ms:
        return (
            f"--latency-budget {budget_ms:g} cannot be met: a step without a draft takes {seconds(plain_s)}"
        )
    if (first_token_s or 0) * 1e3 > budget_ms:
        return f"--latency-budget {budget_ms:g} was not met: the first token took {seconds(first_token_s)}"
    return ""


def unused_draft(
    lengths: Mapping[str, int], draft_bytes: int, expert_bytes: int, n_slots: int, n_experts: int
) -> str:
    """Return advice to leave out a draft whose memory would bring more as slots; "" if there is none.

    `lengths` has the number of steps for each draft length that the governor chose. `draft_bytes` is the size
    of the draft on the device.
    """
    n_steps, n_unused = sum(lengths.values()), lengths.get("0", 0)
    more = min(draft_bytes // expert_bytes if expert_bytes else 0, n_experts - n_slots)
    if n_steps < ENOUGH_STEPS or n_unused < UNUSED_SHARE * n_steps or more <= 0:
        return ""
    return (
        f"drafting did not pay: {n_unused / n_steps:.0%} of the steps did without; without --draft, its "
        f"{size(draft_bytes)} would hold {more} more experts ({more / n_experts:.0%} of all)"
    )


def verdict(stats: Mapping[str, Any]) -> str:
    """Return one sentence about a run: how fast it was, what computed it, and what to change.

    `stats` has the fields of `RunStats` by name. A field that is missing counts as null.
    """
    device = "the CPU" if stats.get("device") in (None, "cpu") else stats["device"]
    experts = f", {share(stats)} of the expert work" if stats.get("gpu_share") is not None else ""
    speed = number(stats.get("tokens_per_second"))
    return f"{speed} tokens/s on {device}{experts}; to change: {change(stats)}."


def change(stats: Mapping[str, Any]) -> str:
    """Return the change that promises most after a run, as a clause. `stats` is that of `verdict`."""
    stat = stats.get
    if stat("device_is_simulated"):
        return (
            "the simulated device only shows the split; --device cpu is faster, and `spac doctor` says why "
            "no GPU is used"
        )
    if stat("device") in (None, "cpu"):
        return "no GPU was used, and `spac doctor` says if one could be"
    n_steps = stat("steps") or 0
    if n_steps < ENOUGH_STEPS:
        return f"nothing yet, {n_steps} steps are too few to tell"
    return _draft(stats) or _experts(stats) or "nothing stands out; `spac bench` compares settings"


def _draft(stats: Mapping[str, Any]) -> str:
    """Return advice to draft less; "" if drafting pays, or the governor has seen to it."""
    lengths, acceptance = stats.get("draft_lengths") or {}, stats.get("acceptance")
    unused = lengths.get("0", 0) / max(1, sum(lengths.values()))
    if unused >= UNUSED_SHARE:
        return f"leave out the draft, which {unused:.0%} of the steps did not use"
    if stats.get("governor") == "fixed" and acceptance is not None and acceptance < LOW_ACCEPTANCE:
        return f"draft fewer tokens (--draft-max), or none: {percent(acceptance)} were accepted"
    return ""


def _experts(stats: Mapping[str, Any]) -> str:
    """Return advice about memory for experts; "" if the GPU computes most of them."""
    cpu_share = stats.get("cpu_share") or 0
    read = (stats.get("disk_bytes") or 0) / max(1, stats.get("generated_tokens") or 0)
    if read > (stats.get("expert_bytes") or 0):
        return (
            f"use a smaller quantization or more memory: {size(int(read))} of experts were read from disk "
            "for each token"
        )
    if cpu_share < HIGH_CPU_SHARE or (stats.get("slots") or 0) >= (stats.get("n_experts") or 0):
        return ""
    limit = "a larger --vram-limit, " if stats.get("vram_limit") else ""
    return f"give more slots, which --slots auto, {limit}a smaller --ctx or a smaller quantization do"
