"""How tokens are chosen where a request does not say."""

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
"""What a request can say of the sampling: the names of `SamplingConfig`, and the request's."""


def of(sampling: SamplingConfig) -> dict[str, Any]:
    """What holds where a request says nothing. llama-cpp-python's server would penalize repetitions."""
    given = {asked: getattr(sampling, name) for name, asked in SAMPLING.items()}
    return {name: value for name, value in given.items() if value is not None}
