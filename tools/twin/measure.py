"""Measure a running twin: locality of its routing, its chain, and the correct predictions of its draft.

The model runs in spac, a token at a time, and every step's demand is kept. The only knowledge of how the
weights were made is the chain's length, which the file states.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.model.gguf.header import read_header
from spac.replay import Demand
from spac.stats import RunStats
from spac.stats.recording import Recorder
from tools.twin.drift import Locality


@dataclass(frozen=True)
class Measured:
    """Figures of one twin, and of its draft when there is one."""

    locality: Locality
    by_layer: list[Locality]
    n_token: int
    in_chain: float  # share of the generated tokens that are their predecessor's successor
    acceptance: float | None  # share of the drafted tokens that were accepted
    agreement: float | None  # share of the steps whose first drafted token was right


def chain_length(path: Path) -> int:
    """Return the number of tokens in the twin's chain. Raise ValueError for a file that is no twin."""
    length = read_header(path).metadata.get("twin.chain")
    if not isinstance(length, int):
        raise ValueError(f"{path}: not a twin (no twin.chain in its metadata)")
    return length


def run(
    target: Path, n_token: int, *, draft: Path | None = None, start: int = 0
) -> tuple[list[int], RunStats, Demand]:
    """Generate greedy text of `n_token` tokens from token `start` on, with 8 drafted tokens a step if there
    is a draft. Return the tokens, statistics, and the demand of every step."""
    recorder = Recorder()
    config = EngineConfig(
        target=target, draft=draft, draft_length=8 if draft else 0, device="simulated", slots=1,
        scheduler="static", ctx=n_token + 80, state="off",
        sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        generation = engine.generate([start], n_token, recorder=recorder)
        for _ in generation:
            pass
        assert recorder.demand is not None
        return generation.tokens, generation.stats, recorder.demand


def in_chain(tokens: list[int], start: int, n_chain: int) -> float:
    """Return the share of `tokens`, which follow `start`, that are their predecessor's successor."""
    before = np.array([start, *tokens[:-1]])
    return float(np.mean(np.array(tokens) == (before + 1) % n_chain))


def measure(target: Path, n_token: int, *, draft: Path | None = None, start: int = 0) -> Measured:
    """Run the target alone, and with its draft where one is given."""
    n_chain = chain_length(target)
    tokens, _, demand = run(target, n_token, start=start)
    active = demand.counts > 0
    acceptance = agreement = None
    if draft is not None:
        written, stats, demand = run(target, n_token, draft=draft, start=start)
        if written[:n_token] != tokens[:n_token]:
            raise ValueError(f"{target}: with its draft it writes another text than alone")
        acceptance = stats.accepted_tokens / max(1, stats.drafted_tokens)
        agreement = float(np.mean(demand.accepted[demand.verified > 1] > 0))
    by_layer = [Locality.of(active[:, [layer]]) for layer in range(active.shape[1])]
    place, share = Locality.of(active), in_chain(tokens, start, n_chain)
    return Measured(place, by_layer, len(tokens), share, acceptance, agreement)
