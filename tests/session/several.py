"""Sessions of several sequences on one context, and what each sequence says alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spac import _core
from tests.session.lab import GREEDY, Lab, generate, prompt

CONTEXT: dict[str, Any] = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 64}
Made = dict[int, list[int]]


def session(
    lab: Lab,
    path: Path,
    n: int = 3,
    *,
    draft: Path | None = None,
    unified: bool = True,
    experts: _core.Experts | None = None,
    size: dict[str, Any] = CONTEXT,
    **params: Any,
) -> _core.ParallelSession:
    """Return a session of `n` sequences that closes before its contexts."""
    several = {**size, "n_seq_max": n, "kv_unified": unified}
    drafts = None if draft is None else lab.context(draft, **several)
    if draft is not None:
        params.setdefault("draft_types", ["draft-simple"])
    made = _core.ParallelSession(lab.context(path, **several), drafts, experts, **params)
    lab._closing.callback(made.close)
    return made


def run(session: _core.ParallelSession, ids: list[int], n: int, made: Made, *, n_prompt: int = 64) -> Made:
    """Step until each of the sequences has `n` tokens more, or has ended."""
    wanted = {i: len(made.setdefault(i, [])) + n for i in ids}
    while wanted:
        step = session.step([(i, session.draft_max) for i in wanted], n_prompt)
        for each in step.sequences:
            each.check()
            made[each.id] += each.tokens.tolist()
            if len(made[each.id]) >= wanted[each.id] or each.reason == "length":
                del wanted[each.id]
    return made


def alone(lab: Lab, path: Path, tokens: Any, n: int, **sampling: Any) -> list[int]:
    """Return the `n` tokens of a session that has the model for itself."""
    return generate(lab.session(lab.context(path, **CONTEXT), **{**GREEDY, **sampling}), tokens, n)


PROMPTS = [prompt(70, 1), prompt(5, 2), prompt(33, 3)]
