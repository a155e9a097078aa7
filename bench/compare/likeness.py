"""Measure how alike the libraries' likelihoods are, and judge it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.compare.job import Job

if TYPE_CHECKING:
    from bench.compare.comparison import Comparison

TOKENS = 256  # of each prompt
NOISE = 0.01  # nats a token: what other kernels' rounding may change, where it is not measured


def perplexity(found: Sequence[float]) -> float:
    """Return the perplexity of tokens with these surprises."""
    return float(np.exp(np.mean(found)))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how far two models are apart on the same tokens: the mean difference of a token's surprise, in
    nats.

    This is much sharper than the difference of two perplexities, in which tokens' differences cancel.
    """
    return float(np.abs(np.subtract(one, other)).mean())


def measured(comparison: Comparison) -> dict[str, list[float]]:
    """Return every token's surprise over --text, or over words of the chain with a leap at every 32nd.

    llama.cpp runs with all experts on the CPU and with all on the device (two ways to round the same values),
    spac with experts on both.
    """
    args = comparison.args
    tokens = [token for prompt in comparison.prompts[TOKENS] for token in prompt]
    if args.text is None:
        tokens = [t if i % 32 else (t * 7919) % max(tokens) for i, t in enumerate(tokens)]
    ways = {"llama.cpp": len(comparison.sizes), "llama.cpp, experts on the device": 0, "spac": None}
    found = {}
    for name, n_cpu_moe in ways.items():
        kind, key = name.partition(",")[0], f"likelihoods-{name.replace(', ', '-').replace(' ', '-')}"
        job = Job(
            kind="likelihoods", target=str(args.target), prompts=[tokens], n_predict=0, ctx=len(tokens) + 64,
            threads=comparison.threads(kind), slots=args.budgets[0], device=comparison.device(kind),
            n_cpu_moe=n_cpu_moe,
        )  # fmt: skip
        result = comparison.do(key, job, anew=comparison.failed(key) and key not in comparison.tried)
        if result and result.surprises:
            found[name] = result.surprises
        elif result and key not in comparison.tried:
            comparison.not_run.append(f"{key}: {result.error}")
        comparison.tried.add(key)
    return found


def judged(found: dict[str, list[float]]) -> tuple[list[str], list[str]]:
    """Return lines that report how alike the libraries' perplexities are, and lines for differences that must
    not be."""
    wrong: list[str] = []
    lines = [f"Perplexity, {name}: {perplexity(values):.5f}" for name, values in found.items()]
    if "spac" in found and "llama.cpp" in found:
        theirs = found["llama.cpp"]
        other = found.get("llama.cpp, experts on the device")
        noise = apart(other, theirs) if other else 0.0
        distance = apart(found["spac"], theirs)
        lines.append(
            f"A token's surprise differs by {distance:.2e} nats between spac and llama.cpp, in the mean, "
            f"and by {noise:.2e} between llama.cpp's experts on the CPU and on the device."
        )
        if distance > (2 * noise if other else NOISE):
            wrong.append(f"spac's likelihoods are {distance:.2e} nats a token off, noise is {noise:.2e}")
    return lines, wrong
