"""Run the systems under comparison with equal prompts, seeds and draft lengths, so that text and demand are
equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.program import with_misses
from bench.replay_demand import ROWS
from bench.schedulers.replays import PRINTED, RIVALS
from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.costs import Costs
from spac.engine import Engine

SYSTEMS = {
    "MoE-SpAc (printed)": PRINTED,
    **{name: f"{PRINTED},{options}" for name, options in ROWS.items()},
    "w/o SD": PRINTED,
    "moe-spac": "moe-spac",
    "moe-spac, own order": "moe-spac:ties=count,whole=off",
    "logistic": "logistic",
    "logistic, no whole layers": "logistic:whole=off",
    **{name: name for name in (*RIVALS, "lru", "lru load", "ewma", "static")},
}
"""The paper's Table 4 on the printed system, then ours, each also without the parts that ours share, then the
rivals. Values are those of --scheduler, and of --miss behind a space: "lru load" is a plain expert cache,
whose misses are copied to the device within their layer. "w/o SD" drafts nothing."""
FULL, PLAIN = next(iter(SYSTEMS)), "w/o SD"
OURS = "moe-spac"


@dataclass(frozen=True)
class Setting:
    """The settings that a group of systems shares."""

    slots: str = "17%"
    tokens: int = 64
    draft_length: int = 8
    threads: int = 1


@dataclass(frozen=True)
class Pair:
    """A target and its draft."""

    target: Path
    draft: Path


class Subject:
    """One loaded system, whose steps are recorded."""

    def __init__(self, name: str, scheduler: str, pair: Pair, setting: Setting) -> None:
        self.name = name
        self.steps: list[tuple[int, int, np.ndarray]] = []  # drafted, verified, layer_costs
        self.demand: list[np.ndarray] = []
        scheduler, miss = with_misses(scheduler)
        config = EngineConfig(
            target=pair.target, draft=pair.draft, device="simulated", slots=setting.slots,
            scheduler=scheduler, miss=miss, threads=setting.threads, ctx=2048, governor="fixed",
            draft_length=0 if name == PLAIN else setting.draft_length,
            state="off",
        )  # fmt: skip
        self.engine = Engine(config)
        self.engine.events.after_step.append(self._watch)

    def _watch(self, step: _core.Step) -> None:
        self.steps.append((step.n_drafted, step.n_verified, step.layer_costs.copy()))
        self.demand.append(step.demand.copy())

    def run(self, prompt: str, tokens: int, seed: int) -> dict[str, Any]:
        """Return the figures of one generation, and its text."""
        self.steps.clear()
        self.demand.clear()
        sampling = SamplingConfig(seed=seed, ignore_eos=True)
        generation = self.engine.generate(prompt, tokens, sampling=sampling)
        text = "".join(generation)
        return {**asdict(generation.stats), "text": text}

    def costs(self) -> Costs:
        """Return the costs as this run has learned them."""
        assert self.engine.costs is not None
        return self.engine.costs.costs

    def predicted_s(self, costs: Costs) -> float:
        """Return the seconds of the last run's steps after Eq. 7-9. They consist of drafting, the dense part,
        and for every layer the slower of CPU and device. Copies within the layer come before the device's
        work."""
        assert self.engine.experts is not None
        pools = [layer.pool for layer in self.engine.experts.layers]
        total = 0.0
        for n_drafted, n_verified, layers in self.steps:
            total += costs.draft(n_drafted) + costs.dense(n_verified)
            for pool, layer in zip(pools, layers, strict=True):
                unit = costs.experts[pool]
                cpu = unit.cpu_s(int(layer["host_activations"]), int(layer["host_distinct"]))
                copies = unit.upload_busy_s * int(layer["loaded_distinct"])
                total += max(cpu, copies + unit.device_expert_s * int(layer["device_distinct"]))
        return total


def read_prompts(path: Path, skip: int, number: int) -> list[str]:
    """Return `turns[0]` of `number` lines, after the first `skip` lines."""
    lines = path.read_text().splitlines()[skip : skip + number]
    return [json.loads(line)["turns"][0][:2000] for line in lines]


class Rows:
    """Results as JSON lines. A result that exists already is not computed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]
        self._known = {self._key(row) for row in self.rows}

    @staticmethod
    def _key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("set", "prompt", "seed", "system", "share", "tokens"))

    def missing(self, row: dict[str, Any]) -> bool:
        return self._key(row) not in self._known

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._known.add(self._key(row))
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


KEPT = (
    "hit_rate", "hit_rate_distinct", "hit_rate_step", "decode_s", "steps", "generated_tokens", "uploads",
    "uploads_wasted", "evictions_early", "activations", "acceptance", "scheduler_s", "host_wait_s",
)  # fmt: skip


def run_set(
    rows: Rows, name: str, prompts: Sequence[str], pair: Pair, setting: Setting, systems: dict[str, str],
    seeds: Iterable[int], folder: Path,
) -> None:  # fmt: skip
    """Run all systems over the prompts of one set, in turn at every prompt. Write their demand to
    `folder`."""
    todo = [
        (prompt, seed, system)
        for prompt in range(len(prompts))
        for seed in seeds
        for system in systems
        if rows.missing(_row(name, prompt, seed, system, setting))
    ]
    if not todo:
        return
    with ExitStack() as stack:
        subjects = {}
        for system, scheduler in systems.items():
            subjects[system] = Subject(system, scheduler, pair, setting)
            stack.enter_context(subjects[system].engine)
        first = next(iter(subjects.values()))
        wanted: list[np.ndarray] = []
        found = []
        for prompt, seed, system in todo:
            result = subjects[system].run(prompts[prompt], setting.tokens, seed)
            row = _row(name, prompt, seed, system, setting)
            row.update({key: result[key] for key in KEPT})
            row.update(moved=result["bytes_moved"]["uploads"], prediction=result["prediction"])
            row.update(text=hash_of(result["text"]), predicted_s=subjects[system].predicted_s(first.costs()))
            found.append(row)
            if system == first.name:
                wanted += subjects[system].demand
        if wanted:
            layers = first.engine.experts.layers  # type: ignore[union-attr]
            np.savez_compressed(
                folder / f"{name}-{setting.slots}-{setting.tokens}.npz",
                counts=np.stack(wanted).astype(np.uint16),
                shapes=np.array([(layer.n_expert, layer.pool) for layer in layers]),
            )
    for row in found:
        rows.add(row)
    _check_texts(found)


def _row(name: str, prompt: int, seed: int, system: str, setting: Setting) -> dict[str, Any]:
    return {"set": name, "prompt": prompt, "seed": seed, "system": system, "share": setting.slots,
            "tokens": setting.tokens}  # fmt: skip


def hash_of(text: str) -> str:
    """Return a short hash that is the same in every process."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_texts(rows: list[dict[str, Any]]) -> None:
    """Check that systems that draft alike write the same text: residency changes no bit."""
    for same in _grouped(rows):
        texts = {row["text"] for row in same if row["system"] != PLAIN}
        if len(texts) > 1:
            raise RuntimeError(
                f"systems wrote different text for {same[0]['set']}, prompt {same[0]['prompt']}"
            )


def _grouped(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["prompt"], row["seed"]), []).append(row)
    yield from groups.values()
