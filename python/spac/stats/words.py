"""Words for statistics, which the table of a run and the report share."""

from __future__ import annotations


def end(reason: str, n_tokens: int, context: int) -> str:
    """Return how a text ended, in words: "" where nothing is known.

    `reason` is the statistics' own word. `n_tokens` are those of prompt and answer.
    """
    if reason == "length":
        return "stopped at a full context" if 0 < context <= n_tokens + 1 else "stopped at --max-tokens"
    return {"stop": "stopped by the model", "cancelled": "cancelled"}.get(reason, reason)
