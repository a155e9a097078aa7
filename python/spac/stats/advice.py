"""Advice to the user after a run, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from spac.machine.device_memory import size
from spac.stats.words import seconds

ENOUGH_STEPS = 64
UNUSED_SHARE = 0.9


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
