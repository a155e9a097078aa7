"""Which model predicts the CPU's time for experts: `python bench/cpu_cost.py --prompts FOLDER`.

The paper's form costs a time per activated pair (token, expert). A kernel that reads an expert once for all
its tokens costs a time per distinct expert as well. Both are fitted to half of the steps of a run of the
bundled demo pair (draft lengths 1 to 8; hot, cold or random experts resident, so that pairs and experts vary
apart) and judged on the other half: mean and median error, relative to the measurement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import SpacError
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.cost import fit

DEMO = Path(__file__).resolve().parents[1] / "python" / "spac" / "demo"


class Shuffling(Scheduler):
    """Changes residency and draft length in every step and keeps what the CPU computed, and for how long."""

    name = "shuffling"
    events = frozenset({Event.START, Event.DRAFT_END, Event.VERIFY_END})

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.rows: list[tuple[int, int, int]] = []  # pairs, distinct experts, nanoseconds
        self._rng = np.random.default_rng(0)

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.START:
            self._count = np.zeros(view.demand.shape)
            self._before = None
            return Plan.nothing(view.n_layer, view.n_expert)
        assert self.engine is not None
        assert self.engine.experts is not None
        assert self.engine.session is not None
        experts = self.engine.experts
        if event == Event.DRAFT_END:
            experts.settle(10)
            self._found = experts.residency() >= 0
            self._before = experts.stats["host_compute_ns"]
            return None
        if self._before is not None:
            on_cpu = np.where(self._found, 0, view.demand)
            spent = experts.stats["host_compute_ns"] - self._before
            self.rows.append((int(on_cpu.sum()), int(np.count_nonzero(on_cpu)), spent))
        self._before = None
        self.engine.session.set_draft_length(int(self._rng.integers(1, 9)))
        self._count = 0.8 * self._count + view.demand
        hot = self._count / self._count.max()
        score = (hot, 1 - hot, self._rng.random(hot.shape))[self._rng.integers(3)]
        return Plan((1 + 1000 * score).astype(np.int32), np.ones(view.n_layer, np.int32))


def measure(given: argparse.Namespace) -> np.ndarray:
    """int64 [n, 3]: pairs, distinct experts and nanoseconds of every step that left something to the CPU."""
    subject = Shuffling()
    config = EngineConfig(
        target=DEMO / "target.gguf",
        draft=DEMO / "draft.gguf",
        device="stand-in",
        slots=0.4,
        threads=given.threads,
        scheduler=subject,
        ctx=2048,
        sampling=SamplingConfig(seed=1, ignore_eos=True),
    )
    with Engine(config) as engine:
        subject.engine = engine
        for path in sorted(given.prompts.glob("*.jsonl")):
            for line in path.read_text().splitlines()[: given.number]:
                "".join(engine.generate(json.loads(line)["turns"][0][:1000], 96))
    rows = np.array(subject.rows)
    return rows[rows[:, 0] > 0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits and compares cost models of the CPU.")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--number", type=int, default=4, help="prompts of each file")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    try:
        rows = measure(given)
    except SpacError as error:
        raise SystemExit(f"error: {error}") from None
    rng = np.random.default_rng(1)
    learned, judged = np.array_split(rng.permutation(len(rows)), 2)
    pairs, distinct, seconds = rows[:, 0], rows[:, 1], rows[:, 2] / 1e9
    print(f"{len(rows)} steps, {pairs.sum() / distinct.sum():.2f} pairs per distinct expert")
    for by_expert in (False, True):
        for fixed in (False, True):
            model = fit(pairs[learned], distinct[learned], seconds[learned], by_expert=by_expert, fixed=fixed)
            mean = model.relative_error(pairs[judged], distinct[judged], seconds[judged])
            off = np.abs(model.predict(pairs[judged], distinct[judged]) / seconds[judged] - 1)
            print(
                f"{'pairs and experts' if by_expert else 'pairs (the paper)':18}"
                f"{' + fixed' if fixed else '':8}  error: mean {mean:.1%}, median {np.median(off):.1%};  "
                f"{model.per_pair * 1e6:.2f} µs per pair, {model.per_expert * 1e6:.2f} per expert, "
                f"{model.fixed * 1e6:.0f} fixed"
            )


if __name__ == "__main__":
    main()
