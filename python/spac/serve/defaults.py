"""Sampling options that apply where a request gives none."""

from __future__ import annotations

from typing import Any

from spac.config.sampling import SamplingConfig

SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "mirostat": "mirostat_mode",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
}
"""The sampling options that a request can give: their names in `SamplingConfig`, and in a request."""


def of(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the values that apply where a request gives none, by their names in a request.

    Without them, llama-cpp-python's server would penalize repetitions.
    """
    given = {asked: getattr(sampling, name) for name, asked in SAMPLING.items()}
    return {name: value for name, value in given.items() if value is not None}
