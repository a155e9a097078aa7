"""Measure the host's time of a decode step: `python -m bench.step_host --build FOLDER --target FILE`.

The pretend card of tools/cuda_host has kernels that take no time, so a step takes what the host needs. FOLDER
is a CUDA build of spac, or what `python -m tools.cuda_host --out FOLDER` has left. The model has narrow
layers and the full vocabulary (`python -m tools.twin qwen3-30b-a3b --width 128 FILE` makes it).

The systems run in turns, each in a process of its own: the unpatched library in a loop of llama_decode and
its own samplers (`llama.cpp`), spac without the split, as it runs where all experts fit (`whole`), and with
17 % of the experts resident (`17%`), where the CPU computes the others. All sample greedily, then with the
default sampler. A row has the median of the rounds in µs a step, its range, and the medians of the parts:
llama.cpp's decode with what it queues on the card, the waits for it, the CPU's experts, sampling, the
scheduler, and the rest, which is the loop, statistics and Python. --out writes the page, and its figures as
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.program import about, publish, run_program, where
from spac.errors import InputError
from tools.cuda_host.build import BuildError, package_of

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS: dict[str, dict[str, Any] | None] = {
    "llama.cpp": None,
    "whole": {},
    "17%": {"slots": "17%"},
}
"""The systems, and the options of an engine; None for llama.cpp's own loop."""
SAMPLERS = ("greedy", "default")
PARTS = ("decode", "queues", "waits", "experts", "sampling", "scheduler", "rest")
PROMPT = "Once upon a time there was a small fox who lived in the wood."


def with_engine(model: str, sampler: str, n: int, options: dict[str, Any]) -> dict[str, float]:
    """Return the µs of a step of `Engine.generate`, by part."""
    from spac.config import EngineConfig, SamplingConfig
    from spac.engine import Engine

    sampling = SamplingConfig(temp=0.0 if sampler == "greedy" else 0.8, seed=1, ignore_eos=True)
    config = EngineConfig(target=model, device="CUDA0", ctx=1024, threads=1, state="off", **options)
    with Engine(config) as engine:
        "".join(engine.generate(PROMPT, 32, sampling=sampling))
        before = engine.experts.stats if engine.experts is not None else {}
        generation = engine.generate("And then " + PROMPT, n, sampling=sampling)
        "".join(generation)
        now = engine.experts.stats if engine.experts is not None else {}
        stats, queue_s = generation.stats, (now.get("queue_ns", 0) - before.get("queue_ns", 0)) / 1e9
        if (engine.experts is None) != (not options):
            raise InputError("; ".join(engine.notes))
    per_step = {
        "step": stats.decode_s, "queues": queue_s, "waits": stats.host_wait_s,
        "experts": stats.host_compute_s, "sampling": stats.sample_s, "scheduler": stats.scheduler_s,
    }  # fmt: skip
    parts = {name: value * 1e6 / stats.steps for name, value in per_step.items()}
    verify = stats.verify_s * 1e6 / stats.steps
    parts["decode"] = verify - parts["queues"] - parts["waits"] - parts["experts"]
    return parts | {"rest": parts["step"] - verify - parts["sampling"] - parts["scheduler"]}


def ask(package: Path, system: str, model: Path, sampler: str, n: int) -> dict[str, float]:
    """Return the figures of a process that runs one system on the pretend card. Raise InputError."""
    code = [sys.executable, "-m", "bench.step_host", "--worker", system, "--target", str(model)]
    code += ["--sampler", sampler, "--tokens", str(n)]
    if SYSTEMS[system] is None:
        code = [sys.executable, "-m", "bench.plain_steps", str(model), PROMPT, sampler, str(n)]
    paths = f"{package}{os.pathsep}{ROOT}"
    environment = os.environ | {"PYTHONPATH": paths, "OMP_WAIT_POLICY": "passive"}
    environment |= {"PRETEND_CUDA_EXECUTE": "", "PRETEND_CUDA_MEMORY_MB": "8000"}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    if SYSTEMS[system] is None:
        environment["LLAMA_CPP_LIB_PATH"] = str(package / "spac" / "lib" / "reference")
    done = subprocess.run(code, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"{system}: {(done.stderr or done.stdout).strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            package = package_of(args.build, Path(folder))
        except BuildError as error:
            raise InputError(str(error)) from None
        seen: dict[tuple[str, str], list[dict[str, float]]] = {}
        for _ in range(args.rounds):
            for sampler in SAMPLERS:
                for system in args.systems:
                    figures = ask(package, system, args.target, sampler, args.tokens)
                    seen.setdefault((sampler, system), []).append(figures)
    lines = [
        f"| {' | '.join(('sampler', 'system', 'µs a step', *PARTS))} |",
        "| --- " * (3 + len(PARTS)) + "|",
    ]
    for (sampler, system), rounds in seen.items():
        steps = [each["step"] for each in rounds]
        parts = [statistics.median([each.get(part, 0.0) for each in rounds]) for part in PARTS]
        shown = f"{statistics.median(steps):.0f} ({min(steps):.0f}–{max(steps):.0f})"
        lines.append(f"| {' | '.join((sampler, system, shown, *(f'{part:.0f}' for part in parts)))} |")
    figures = {**about("bench.step_host"), "rounds": {f"{a}, {b}": each for (a, b), each in seen.items()}}
    text = f"`{figures['command']}`, {args.rounds} rounds. {where()}\n\n" + "\n".join(lines)
    publish(text, args.out, "# The host's time of a step", figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.step_host", description=__doc__)
    parser.add_argument("--build", type=Path, help="a CUDA build of spac, or the pretend card's folder")
    parser.add_argument("--target", type=Path, required=True, help="the model")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="write the page to this file")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--sampler", choices=SAMPLERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is None:
        if args.build is None:
            parser.error("--build is needed")
        return run_program(measure, args)
    print(json.dumps(with_engine(str(args.target), args.sampler, args.tokens, SYSTEMS[args.worker] or {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
