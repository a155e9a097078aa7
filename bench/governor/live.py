"""Run prompts at fixed draft lengths and under the governor, in turn, and evaluate the results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.governor import DraftLengthController, RooflineGovernor

FIXED = (0, 1, 2, 4, 8, 12)
GOVERNOR = "governor"
Run = dict[str, Any]


class RecordingPace(DraftLengthController):
    """A controller that keeps what every step chose, drafted, accepted and took."""

    steps: list[list[int]]

    def step(self, room: int | None) -> Any:
        start = perf_counter()
        step = super().step(room)
        took = int((perf_counter() - start) * 1e9)
        self.steps.append([self._session.draft_length, step.n_drafted, step.n_accepted, step.draft_ns, took])
        return step


def record(given: argparse.Namespace, about: dict[str, object]) -> None:
    """Run every set that has no file yet."""
    given.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(given.prompts.glob("*.jsonl")):
        to = given.folder / f"{path.stem}.json"
        if to.exists() or (given.sets and path.stem not in given.sets):
            continue
        prompts = [
            json.loads(line)["turns"][0][:2000] for line in path.read_text().splitlines()[: given.number]
        ]
        started = perf_counter()
        data = run_set(given, prompts)
        to.write_text(json.dumps({**about, **data}) + "\n")
        print(f"{path.stem}: {len(prompts)} prompts in {perf_counter() - started:.0f} s", flush=True)


def run_set(given: argparse.Namespace, prompts: list[str]) -> dict[str, Any]:
    """Run one engine over all prompts of a set. Each length runs `rounds` times, in an order drawn anew."""
    config = EngineConfig(
        target=given.target,
        draft=given.draft,
        device=given.device,
        ctx=2048,
        draft_max=max(FIXED),
        state="off",
    )
    runs: list[Run] = []
    order = np.random.default_rng(0)
    with Engine(config) as engine:
        _warm_up(engine, prompts[0])
        for i, prompt in enumerate(prompts):
            sampling = SamplingConfig(temp=given.temp, seed=1 + i, ignore_eos=True)
            lengths: list[int | None] = [None, *FIXED] * given.rounds
            for which in order.permutation(len(lengths)):
                engine.fix_draft_length(lengths[which])
                runs.append({"prompt": i, **_run(engine, prompt, given.tokens, sampling)})
        engine.fix_draft_length(None)
    return {"tokens": given.tokens, "temp": given.temp, "runs": runs}


def _warm_up(engine: Engine, prompt: str) -> None:
    for length in FIXED:  # warms memory, threads, and the graphs of every size
        engine.fix_draft_length(length)
        "".join(engine.generate(prompt, 24))
    engine.fix_draft_length(None)


def _run(engine: Engine, prompt: str, n_tokens: int, sampling: SamplingConfig) -> Run:
    steps: list[list[int]] = []

    def controller(session: Any) -> DraftLengthController:
        assert engine.governor is not None
        made = RecordingPace(engine.governor, session)
        made.steps = steps
        return made

    engine.controller = controller  # type: ignore[method-assign, assignment]
    generation = engine.generate(prompt, n_tokens, sampling=sampling)
    for _ in generation:
        pass
    stats = generation.stats
    length: int | str = GOVERNOR if stats.governor == RooflineGovernor.name else steps[0][0]
    return {"length": length, "n": stats.generated_tokens, "seconds": stats.decode_s, "steps": steps}


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recordings by the names of the sets."""
    sets = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not sets:
        raise InputError(f"{folder} has no recordings: run `record` first")
    return sets


def rates(data: dict[str, Any]) -> dict[int | str, np.ndarray]:
    """Return tokens per second by length, float64 [prompts], of the fastest round: interruptions only add
    time."""
    by_length: dict[int | str, dict[int, float]] = {}
    for run in data["runs"]:
        found = by_length.setdefault(run["length"], {})
        found[run["prompt"]] = max(found.get(run["prompt"], 0.0), run["n"] / run["seconds"])
    return {length: np.array([found[i] for i in sorted(found)]) for length, found in by_length.items()}


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return the median and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(seed).choice(values, (10_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(values)), float(low), float(high)


def against_fixed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of one set, the fixed length that is best over all its prompts, and the paired ratio
    to it.

    The best length is chosen after the fact, with the noise in its favour.
    """
    found = rates(data)
    overall = {k: float(len(found[k]) / (1 / found[k]).sum()) for k in (*FIXED, GOVERNOR)}
    best = max(FIXED, key=lambda k: overall[k])
    return {
        "tokens_per_second": {str(k): rate for k, rate in overall.items()},
        "best": best,
        "ratio": interval(found[GOVERNOR] / found[best]),
        "ratios": {str(k): interval(found[GOVERNOR] / found[k]) for k in FIXED},
    }
