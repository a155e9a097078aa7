"""Measure a running twin: locality of its routing, its chain, and the correct predictions of its draft.

The model runs in spac, a token at a time, and every step's demand is kept. The only knowledge of how the
weights were made is the chain's length, which the file states.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.model.gguf.header import read_header
from spac.replay import Demand
from spac.stats.recording import Recorder
from tools.twin.drift import Locality


@dataclass(frozen=True)
class Run:
    """One generation: its tokens, after the prompt, the demand of its steps, and its statistics."""

    tokens: list[int]
    demand: Demand
    accepted: int
    drafted: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Figures of one twin, and of its draft when there is one."""

    locality: Locality
    by_layer: list[Locality]
    n_token: int
    in_chain: float  # share of the generated tokens that are their predecessor's successor
    tokens_per_second: float
    acceptance: float | None  # share of the drafted tokens that were accepted
    agreement: float | None  # share of the steps whose first drafted token was right

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def chain_length(path: Path) -> int:
    """Return the number of tokens in the twin's chain. Raise ValueError for a file that is no twin."""
    length = read_header(path).metadata.get("twin.chain")
    if not isinstance(length, int):
        raise ValueError(f"{path}: not a twin (no twin.chain in its metadata)")
    return length


def run(
    target: Path, n_token: int, *, draft: Path | None = None, draft_length: int = 0, start: int = 0,
    threads: int = 0, device: str = "simulated",
) -> Run:  # fmt: skip
    """Generate greedy text of `n_token` tokens from token `start` on, with the demand of every step."""
    recorder = Recorder()
    config = EngineConfig(
        target=target, draft=draft, draft_length=draft_length, device=device, slots=1, scheduler="static",
        ctx=n_token + 80, threads=threads, state="off",
        sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        begun = time.perf_counter()
        generation = engine.generate([start], n_token, recorder=recorder)
        for _ in generation:
            pass
        seconds = time.perf_counter() - begun
        tokens, stats = generation.tokens, generation.stats
    assert recorder.demand is not None
    return Run(tokens, recorder.demand, stats.accepted_tokens, stats.drafted_tokens, seconds)


def in_chain(tokens: list[int], start: int, n_chain: int) -> float:
    """Return the share of `tokens`, which follow `start`, that are their predecessor's successor."""
    before = np.array([start, *tokens[:-1]])
    return float(np.mean(np.array(tokens) == (before + 1) % n_chain))


def first_right(accepted: np.ndarray, drafted: np.ndarray) -> float:
    """Return the share of steps with a draft whose first token was accepted: agreement per token."""
    return float(np.mean(accepted[drafted > 0] > 0))


def measure(
    target: Path, n_token: int, *, draft: Path | None = None, threads: int = 0, start: int = 0,
    device: str = "simulated",
) -> Measured:  # fmt: skip
    """Run the target alone, and with its draft where one is given."""
    n_chain = chain_length(target)
    alone = run(target, n_token, threads=threads, start=start, device=device)
    active = alone.demand.counts > 0
    acceptance = agreement = None
    if draft is not None:
        pair = run(target, n_token, draft=draft, draft_length=8, threads=threads, start=start, device=device)
        if pair.tokens[:n_token] != alone.tokens[:n_token]:
            raise ValueError(f"{target}: with its draft it writes another text than alone")
        acceptance = pair.accepted / max(1, pair.drafted)
        agreement = first_right(pair.demand.accepted, pair.demand.verified - 1)
    return Measured(
        locality=Locality.of(active),
        by_layer=[Locality.of(active[:, [layer]]) for layer in range(active.shape[1])],
        n_token=len(alone.tokens),
        in_chain=in_chain(alone.tokens, start, n_chain),
        tokens_per_second=len(alone.tokens) / alone.seconds,
        acceptance=acceptance,
        agreement=agreement,
    )
