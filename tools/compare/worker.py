"""Run a job with one library in this process: ``python -m tools.compare.worker reference|spac JOB.json
OUT.npz``.

The library is the one that LLAMA_CPP_LIB_PATH names for "reference", and spac's own for "spac". OUT.npz has
an array "case|run|step" [rows, n_vocab] for every step. Its "meta" is JSON with the observations of each run
(residency, statistics).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from tools.compare.job import SIMULATED_DEVICE, Case, Job, Run
from tools.compare.script import SCRIPTS, Logits

LIB_PATH = "LLAMA_CPP_LIB_PATH"
Arrays = dict[str, Any]


def _quiet_log() -> object:
    import llama_cpp as ll

    @ll.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes, _user: object) -> None:
        if level == 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(text.decode(errors="replace"))

    ll.llama_log_set(log, None)
    return log  # the caller must keep it alive


def _announce(case: Case, run: Run) -> None:
    """Print the run to stderr, so that a process that dies has named it."""
    print(f"{case.name}, {run.name}", file=sys.stderr, flush=True)


def run_reference(job: Job) -> tuple[Arrays, dict[str, Any]]:
    """Run all cases on the unpatched library, on the CPU or on the job's device."""
    import llama_cpp as ll

    from tools.compare.decoder import Model

    loaded = Path(ll.llama_cpp._lib._name)
    if "spac" in sys.modules or loaded.parent.resolve() != Path(os.environ[LIB_PATH]).resolve():
        raise RuntimeError(f"the reference would be {loaded}")

    _log = _quiet_log()
    ll.llama_backend_init()
    arrays: Arrays = {}
    for case in job.cases:
        with (
            Model(case, on_device=job.device != SIMULATED_DEVICE) as model,
            model.context(case.settings) as context,
        ):
            for run in case.runs:
                _announce(case, run)
                steps = SCRIPTS[case.script](context, lambda: None)
                arrays.update(_named(case, run, steps))
    return arrays, {}


def run_spac(job: Job) -> tuple[Arrays, dict[str, Any]]:
    """Run all cases on spac's library, with experts split over the job's device and the CPU."""
    from spac import _core, env  # before llama_cpp: importing spac chooses the library

    ll = importlib.import_module("llama_cpp")
    decoder = importlib.import_module("tools.compare.decoder")
    _core.set_default_device(job.device.partition(",")[0])
    settings = [job.simulated_device, *job.further_devices]
    for index, each in enumerate(settings):
        _core.set_simulated_device(**each, index=index)
    names = job.device.split(",") + [f"simulated{index}" for index in range(1, len(settings))]
    devices = [_core.device_handle(name) for name in names] if len(names) > 1 else []
    _core.set_pinning(**job.pinning)
    _core.set_gate_timeout(env.GATE_TIMEOUT.get())
    _log = _quiet_log()
    ll.llama_backend_init()
    arrays: Arrays = {}
    meta: dict[str, Any] = {}

    def run_case(case: Case) -> None:
        slot_layers = _core.SlotLayers()
        for name, layers in zip(names, case.slot_layers, strict=False):
            slot_layers.add(name, layers)
        placement = slot_layers.address if case.slot_layers else None
        with (
            _core.LoadScope(case.settings.paged) as scope,
            decoder.Model(case, on_device=True, devices=devices, placement=placement) as model,
        ):
            experts: Any = scope.experts
            for masked, runs in groupby(case.runs, key=lambda run: run.masked):
                _core.set_trust_device_masks(masked)
                with model.context(case.settings) as context:
                    for run in runs:
                        _announce(case, run)
                        _core.set_simulated_device(
                            **settings[-1], fail_uploads=run.fail_uploads, index=len(settings) - 1
                        )
                        steps, meta[f"{case.name}|{run.name}"] = _observe(_core, experts, context, case, run)
                        arrays.update(_named(case, run, steps))

    if job.together:
        with ThreadPoolExecutor(len(job.cases)) as threads:
            list(threads.map(run_case, job.cases))  # raises the threads' exceptions
    else:
        for case in job.cases:
            run_case(case)
    return arrays, meta


def _observe(
    core: Any, experts: Any, context: Any, case: Case, run: Run
) -> tuple[dict[str, Logits], dict[str, Any]]:
    """Do one run. Return its steps' logits, the residency before it and its statistics."""
    experts.settle(30.0)  # the copies of a run before, whose plans moved, are not this one's
    before = dict(experts.stats)
    resident, mover = _place(experts, run)
    core.set_launch_ahead(run.ahead)
    core.set_hand_over_in_place(run.in_place)
    experts.set_stream_tokens(run.stream_tokens)
    experts.set_lookahead(run.lookahead)
    experts.set_miss(run.miss, run.recent)
    experts.set_step_tokens(run.stream_tokens - 1 if run.stream_tokens else 64)  # larger ones are no demand
    try:
        steps = SCRIPTS[case.script](context, mover)
    finally:
        core.set_launch_ahead(None)
        core.set_hand_over_in_place(None)
        experts.set_miss("cpu", False)
    after = dict(experts.stats)
    return steps, {
        "n_layer": experts.n_layer, "n_expert": experts.n_expert, "resident": resident,
        "devices": _devices(experts), "host_bytes": [experts.host_bytes.pinned, experts.host_bytes.pageable],
        "stats": {key: int(after[key]) - int(before[key]) for key in after},
    }  # fmt: skip


def _devices(experts: Any) -> list[dict[str, Any]]:
    """Return the counters of each device's part of the experts."""
    names = ("name", "n_layer", "n_experts", "activations", "activations_hit", "uploads", "upload_failures")
    return [
        {**{name: getattr(each, name) for name in names}, "n_slots": each.slots.n_slots}
        for each in experts.devices
    ]


def _named(case: Case, run: Run, steps: dict[str, Logits]) -> Arrays:
    return {f"{case.name}|{run.name}|{step}": logits for step, logits in steps.items()}


def _place(experts: Any, run: Run) -> tuple[int, Callable[[], None]]:
    """Fill the slots as the run asks. Return how many experts are resident, and a function to call before
    every step."""
    shape = (experts.n_layer, experts.n_expert)
    rng = np.random.default_rng(run.seed)
    n_real = sum(layer.n_expert for layer in experts.layers)
    if n_real:  # none where all layers stay on the CPU
        experts.attach_slots(round(run.share * n_real))
    threshold = np.zeros(shape[0], np.int32)

    def submit() -> None:
        experts.submit(rng.permutation(np.arange(np.prod(shape), dtype=np.int32)).reshape(shape), threshold)

    submit()
    if not experts.settle(30.0):
        raise RuntimeError(f"{run.name}: the plan did not settle")
    return int((experts.residency() >= 0).sum()), _mover(experts, run, submit)


def _mover(experts: Any, run: Run, submit: Callable[[], None]) -> Callable[[], None]:
    """Return a function that submits plans as the run asks, called before every step."""
    if run.moving:
        return submit
    if not run.midway:
        return lambda: None
    timers: list[Timer] = []

    def later() -> None:
        for timer in timers:
            timer.join()
        experts.settle(30.0)
        timers[:] = [Timer(0.01, submit)]
        timers[0].start()

    return later


def main(argv: list[str]) -> int:
    """Return 0, or let the exception end the process: the driver shows its text."""
    library, job_path, out_path = argv
    job = Job.read(Path(job_path))
    arrays, meta = run_spac(job) if library == "spac" else run_reference(job)
    np.savez(out_path, meta=np.array(json.dumps(meta)), **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
