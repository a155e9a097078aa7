"""Which model predicts the CPU's time for experts: `python bench/cpu_cost.py --prompts FOLDER`.

The paper's form costs a time per activated pair (token, expert). A kernel that reads an expert once for all
its tokens costs a time per distinct expert as well. Both are fitted to half of the layers of a run (draft
lengths 1 to 8; hot, cold or random experts resident, so that pairs and experts vary apart) and judged on the
other half: mean and median error, relative to the measurement. The halves are of different steps. With
--target, another model than the bundled demo pair; with --out, the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import SpacError
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.cost import fit

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "python" / "spac" / "demo"


class Shuffling(Scheduler):
    """Changes residency and draft length in every step."""

    name = "shuffling"
    events = frozenset({Event.START, Event.DRAFT_END, Event.VERIFY_END})

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._rng = np.random.default_rng(0)

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.START:
            self._count = np.zeros(view.demand.shape)
            return Plan.nothing(view.n_layer, view.n_expert)
        assert self.engine is not None
        assert self.engine.experts is not None
        assert self.engine.session is not None
        if event == Event.DRAFT_END:
            self.engine.experts.settle(10)
            return None
        self.engine.session.set_draft_length(int(self._rng.integers(1, 9)))
        self._count = 0.8 * self._count + view.demand
        hot = self._count / self._count.max()
        score = (hot, 1 - hot, self._rng.random(hot.shape))[self._rng.integers(3)]
        return Plan((1 + 1000 * score).astype(np.int32), np.ones(view.n_layer, np.int32))


def measure(given: argparse.Namespace) -> np.ndarray:
    """int64 [n, 4]: step, pairs, distinct experts, nanoseconds, of every layer that left the CPU work."""
    subject, rows = Shuffling(), []
    config = EngineConfig(
        target=given.target or DEMO / "target.gguf",
        draft=given.draft if given.target else DEMO / "draft.gguf",
        device=given.device,
        slots=0.4,
        threads=given.threads,
        scheduler=subject,
        governor="fixed",
        ctx=2048,
        sampling=SamplingConfig(seed=1, ignore_eos=True),
    )
    with Engine(config) as engine:
        subject.engine = engine

        def note(step: Any) -> None:
            layers = step.layer_costs
            names = ("host_activations", "host_distinct", "host_ns")
            block = np.stack([layers[name].astype(np.int64) for name in names], axis=1)
            rows.append(np.insert(block, 0, len(rows), axis=1))

        engine.events.after_step.append(note)
        for path in sorted(given.prompts.glob("*.jsonl")):
            for line in path.read_text().splitlines()[: given.number]:
                "".join(engine.generate(json.loads(line)["turns"][0][:1000], 96))
    found = np.concatenate(rows)
    return found[(found[:, 1] > 0) & (found[:, 3] > 0)]


def judge(rows: np.ndarray) -> list[dict[str, Any]]:
    """Every form's unit times and errors, fitted on one half of the steps and judged on the other."""
    step, pairs, distinct, seconds = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] / 1e9
    learned = np.random.default_rng(1).random(step.max() + 1)[step] < 0.5
    forms = []
    for by_expert in (False, True):
        for fixed in (False, True):
            options = {"by_expert": by_expert, "fixed": fixed, "relative": True}
            model = fit(pairs[learned], distinct[learned], seconds[learned], **options)
            off = np.abs(model.predict(pairs[~learned], distinct[~learned]) / seconds[~learned] - 1)
            forms.append(
                {
                    "form": ("pairs and experts" if by_expert else "pairs (Eq. 7)")
                    + (" and a layer" if fixed else ""),
                    "error_mean": float(off.mean()),
                    "error_median": float(np.median(off)),
                    "pair_us": model.per_pair * 1e6,
                    "expert_us": model.per_expert * 1e6,
                    "layer_us": model.fixed * 1e6,
                }
            )
    return forms


def commit() -> str:
    """The commit that was measured, with + where files were changed."""
    call = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=7"]
    return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits and compares cost models of the CPU.")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--number", type=int, default=4, help="prompts of each file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="simulated")
    parser.add_argument("--target", type=Path, help="another model")
    parser.add_argument("--draft", type=Path, help="its draft model")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    try:
        rows = measure(given)
    except SpacError as error:
        raise SystemExit(f"error: {error}") from None
    forms, pairs = judge(rows), float(rows[:, 1].sum() / rows[:, 2].sum())
    print(f"{len(rows)} layers of {len(set(rows[:, 0]))} steps, {pairs:.2f} pairs per distinct expert")
    for form in forms:
        print(
            f"{form['form']:30}  error: mean {form['error_mean']:.1%}, median {form['error_median']:.1%};  "
            f"{form['pair_us']:.2f} µs per pair, {form['expert_us']:.2f} per expert, "
            f"{form['layer_us']:.2f} per layer"
        )
    if given.out:
        about = {
            "command": " ".join(["python", *sys.argv]).replace(str(given.prompts), "DIR"),
            "commit": commit(),
            "machine": f"{platform.machine()}, {given.threads} thread(s)",
            "layers": len(rows),
            "pairs_per_expert": pairs,
        }
        given.out.write_text(json.dumps({**about, "forms": forms}, indent=1) + "\n")


if __name__ == "__main__":
    main()
