"""Ask what the drafts of a target for itself are worth: with its resident experts alone, and with copies.

    python -m bench.self_drafts measure FILE.json --prompts FOLDER [--slots 17% …] [--temp 0.8]
    python -m bench.self_drafts predict FILE.json TRACE.npz … [--out FILE.txt]
    python -m bench.self_drafts memory

`measure` runs the bundled target with `--draft-type self-resident`, which needs no memory, at each number of
slots. At the first number it also runs `self`, with q4_0 copies of the experts, and both with the scheduler
`moe-speq`, which prefetches what the draft's routers name (the paper's Table 4 without its kernel: hits, no
times). It prints how many tokens of the drafts were accepted, the share of a token's experts that the draft's
routers name (with residents: before the others are hidden), and hits of activations.

`predict` puts the measured numbers on traces of real routing and on the machines of bench.step_time. A
drafted token takes the dense part of a step and the reading of its experts on the device. A rejected token
wants the experts of the text's own token. These are predictions. `foreseen` replaces logistic by a scheduler
that knows the next verification: a bound for prefetching what the draft names. `all accepted` is the bound
of acceptance.

`memory` is the paper's Table 2 on the bundled target: bytes on the device without slots.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.provenance import where
from bench.schedulers.replays import pool_slots_of
from bench.step_time.machine import MACHINES, PAIRS, Machine, Model
from bench.step_time.rivals import Foreseen
from bench.step_time.simulation import Simulation
from spac import scheduler
from spac.config import EngineConfig, SamplingConfig
from spac.demo import TARGET
from spac.engine import Engine
from spac.machine.device_memory import in_use
from spac.scheduler.lookahead_buffer import Fidelity
from spac.scheduler.replay import Demand, Recorder
from spac.scheduler.trace import Trace
from tools.self_draft import quantize

LONGEST = 8
LENGTHS = (1, 2, 3, 4, 6, 8)


def measure(given: argparse.Namespace) -> None:
    """Write the numbers of accepted tokens of all drafts, by way to draft and slots."""
    found = {slots: measure_at("self-resident", "logistic", slots, given) for slots in given.slots}
    for kind, name in (("self-resident", "moe-speq"), ("self", "logistic"), ("self", "moe-speq")):
        measure_at(kind, name, given.slots[0], given)
    given.file.write_text(json.dumps({"where": where(), "temp": given.temp, "slots": found}) + "\n")


def measure_at(draft_type: str, name: str, slots: str, given: argparse.Namespace) -> list[int]:
    """Generate text, print what came of its drafts, and return the accepted tokens of each."""
    recorder = Recorder(scheduler.make(name), draft_routes=True)
    config = EngineConfig(
        target=TARGET, device="simulated", slots=slots, state="off", ctx=2048, draft_length=LONGEST,
        draft_type=draft_type, scheduler=recorder, threads=1,
        sampling=SamplingConfig(seed=1, temp=given.temp, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        for path in sorted(given.prompts.glob("*.jsonl")):
            for line in path.read_text().splitlines()[: given.number]:
                "".join(engine.generate(json.loads(line)["turns"][0][:2000], given.tokens))
        assert engine.experts is not None
        stats = engine.experts.stats
    demand = recorder.demand
    assert demand.draft_routes is not None
    lengths = demand.accepted[demand.verified == LONGEST + 1]  # a shorter draft ended with the text
    shares = " ".join(f"{np.minimum(lengths, n).mean() / n:.0%}" for n in LENGTHS)
    named = Fidelity.of(demand.draft_routes, demand.routes).same.mean()
    hits = stats["activations_hit"] / stats["activations"]
    print(
        f"{draft_type:13} {name:8} {slots:>4}: {len(lengths)} drafts, accepted of {LENGTHS}: {shares}, "
        f"named {named:.1%}, hits {hits:.1%}",
        flush=True,
    )
    accepted: list[int] = lengths.tolist()
    return accepted


def memory(_given: argparse.Namespace) -> None:
    """Print the bytes of the device's buffers for each way to draft, and the ratio to independent models."""
    with TemporaryDirectory() as folder:
        copy = quantize(TARGET, Path(folder) / "copy.gguf")
        ways: dict[str, dict[str, Any]] = {
            "independent: a Q4_0 file, its own cache": {"draft": copy},
            "shared: --draft-type self": {"draft_type": "self"},
            "residents: --draft-type self-resident": {"draft_type": "self-resident"},
            "no draft model: --draft-type ngram-simple": {"draft_type": "ngram-simple"},
        }
        found = {name: device_bytes(options) for name, options in ways.items()}
    print(f"python -m bench.self_drafts memory, {where()}: {TARGET.name}, context 4096, no slots")
    for name, n_bytes in found.items():
        print(f"{name:42} {n_bytes:>12,} bytes {n_bytes / max(found.values()):6.1%}")


def device_bytes(options: dict[str, Any]) -> int:
    """Return the bytes of all buffers on the simulated device after a few drafts."""
    config = EngineConfig(
        target=TARGET, device="simulated", scheduler="none", state="off", ctx=4096, draft_length=4,
        sampling=SamplingConfig(temp=0), **options,
    )  # fmt: skip
    with Engine(config) as engine:
        "".join(engine.generate("def f(", 12))
        return in_use("simulated")


def steps_of(trace: Trace, gamma: int, lengths: Sequence[int], seed: int = 0) -> Demand:
    """Return the demand of steps that draft `gamma` tokens and accept one of `lengths` of them, at random."""
    draw = np.random.default_rng(seed)
    _, n_layer, n_used = trace.experts.shape
    firsts, accepted = [], []
    for end, length in zip(np.cumsum(trace.seq_len), trace.seq_len, strict=True):
        first = int(end - length)
        while first + gamma < end:
            firsts.append(first)
            accepted.append(min(gamma, int(draw.choice(lengths))))
            first += 1 + accepted[-1]
    counts = np.zeros((len(firsts), n_layer, trace.n_expert), np.int32)
    routes = np.full((len(firsts), n_layer, gamma + 1, n_used), -1, np.int32)
    for step, first in enumerate(firsts):
        routes[step] = trace.experts[first : first + gamma + 1].transpose(1, 0, 2)
        layer, _, _ = np.nonzero(routes[step] >= 0)
        np.add.at(counts, (step, layer, routes[step][routes[step] >= 0]), 1)
    verified = np.full(len(firsts), gamma + 1, np.int32)
    return Demand(trace.demand().layers, counts, verified, np.array(accepted, np.int32), routes)


def drafting(machine: Machine, model: Model, trace: Trace) -> tuple[Machine, Model]:
    """Return machine and model whose draft runs the dense part and one token's resident experts."""
    _, n_layer, n_used = trace.experts.shape
    read = n_layer * n_used * model.expert_bytes
    return replace(machine, launch_s=machine.dense_s), replace(model, draft_bytes=read)


def rate(machine: Machine, model: Model, demand: Demand, slots: str, name: str) -> float:
    """Return the predicted tokens per second of the second half of the steps."""
    chosen = Foreseen(demand.counts) if name == "foreseen" else scheduler.make(name)
    simulation = Simulation(machine, model, demand, sum(pool_slots_of(demand, slots)))
    return simulation.run(chosen, len(demand.counts) // 2).rate


def predict(given: argparse.Namespace) -> None:
    """Print tokens per second without a draft, and the best of each kind of draft as a ratio to it."""
    measured = json.loads(given.file.read_text())
    lines = [
        f"python -m bench.self_drafts predict, {where()}: predictions of a model, no measurement",
        f"acceptance: measured on {measured['where']}, temperature {measured['temp']}",
        f"tokens/s without a draft; the best of γ = {LENGTHS} as a ratio to it, and that γ",
        "",
        f"{'trace':18} {'machine':8} {'slots':>5} {'no draft':>9} {'resident':>9} {'foreseen':>9} "
        f"{'all accepted':>13}",
    ]
    for path in given.traces:
        trace = Trace.load(path).last(given.tokens)
        model = Model(trace.expert_bytes or PAIRS["qwen3-4b"].expert_bytes, 0)
        for name, machine in MACHINES.items():
            for slots, each in measured["slots"].items():
                plain = rate(machine, model, trace.demand(), slots, "logistic")
                own = drafting(machine, model, trace)
                line = f"{path.stem:18} {name:8} {slots:>5} {plain:9.1f}"
                for kind, lengths in (
                    ("logistic", each), ("foreseen", each), ("logistic", [LONGEST])
                ):  # fmt: skip
                    best = max((rate(*own, steps_of(trace, n, lengths), slots, kind), n) for n in LENGTHS)
                    line += f"{best[0] / plain:{12 if lengths == [LONGEST] else 8}.2f} {best[1]}"
                lines.append(line)
                print(line, flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--prompts", type=Path, required=True)
    measuring.add_argument("--slots", nargs="+", default=["17%", "25%", "50%"])
    measuring.add_argument("--temp", type=float, default=0.8)
    measuring.add_argument("--number", type=int, default=3, help="prompts of each set")
    measuring.add_argument("--tokens", type=int, default=96, help="tokens for each prompt")
    measuring.set_defaults(run=measure)
    predicting = commands.add_parser("predict")
    predicting.add_argument("file", type=Path)
    predicting.add_argument("traces", type=Path, nargs="+")
    predicting.add_argument("--tokens", type=int, default=300, help="the last tokens of each trace")
    predicting.add_argument("--out", type=Path)
    predicting.set_defaults(run=predict)
    commands.add_parser("memory").set_defaults(run=memory)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
