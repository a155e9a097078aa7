"""Words for statistics, which the table of a run and the report share."""

from __future__ import annotations


def end(reason: str, n_tokens: int, context: int) -> str:
    """Return how a text ended, in words; "" if it is unknown.

    `reason` is `RunStats.reason`. `n_tokens` is the number of tokens in the prompt and the answer.
    """
    if reason == "length":
        return "stopped at a full context" if 0 < context <= n_tokens + 1 else "stopped at --max-tokens"
    return {"stop": "stopped by the model", "cancelled": "cancelled"}.get(reason, reason)
