"""Run a job of jobs.py: generate on the pretend card and print as JSON what every step called."""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import sys
from collections import Counter
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from tools.cuda_host.build import NAME
from tools.cuda_host.jobs import Job, Result, Step

SENTENCE = "Once upon a time there was a small fox who lived in the wood. "


def report() -> dict[str, Counter[str]]:
    """Return what was counted since the library was loaded: calls, kernels, misuse (pretend/counts.cpp)."""
    function = ctypes.CDLL(NAME).pretend_cuda_report  # loaded with spac's library: found by its SONAME
    function.restype = ctypes.c_char_p
    return {key: Counter(numbers) for key, numbers in json.loads(function()).items()}


def step_between(before: dict[str, Counter[str]], after: dict[str, Counter[str]]) -> Step:
    calls = Counter[str]()
    streams: dict[str, dict[str, int]] = {}
    for key, n in (after["calls"] - before["calls"]).items():
        kind, stream = key.split()
        calls[kind] += n
        streams.setdefault(stream, {})[kind] = n
    stats = {name: n - before["stats"][name] for name, n in after["stats"].items()}
    return Step(calls, streams, stats, after["kernels"] - before["kernels"])


def take_all_but(left: int) -> None:
    """Take the card's memory until so many bytes are left."""
    card = ctypes.CDLL(NAME)
    free, total, at = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    card.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    card.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(max(0, free.value - left)))


def run(job: Job) -> Result:
    from spac import _core
    from spac.config import EngineConfig, SamplingConfig
    from spac.engine import Engine, expert_cache

    if not job.rehearses:
        vars(expert_cache)["rehearses"] = lambda _pair: False
    demo = files("spac.demo")
    config: dict[str, Any] = {"target": job.target or str(demo / "target.gguf"), "device": "CUDA0"}
    config |= {"ctx": 2048, "threads": 1, "draft_length": job.draft_length, **job.options}
    if job.draft_length and not job.target:
        config.setdefault("draft", str(demo / "draft.gguf"))
    moments: list[dict[str, Counter[str]]] = []
    lengths = random.Random(1)
    with Engine(EngineConfig(**config, state="off")) as engine:
        experts = engine.experts
        assert experts is not None

        def after_step(_: _core.Step) -> None:
            moments.append(report() | {"stats": Counter(experts.stats)})
            if job.changing_length:
                engine.fix_draft_length(lengths.randint(1, job.draft_length))
            if job.changing_slots and len(moments) % 4 == 0:
                engine.set_slots(lengths.randint(0, engine.n_experts))

        engine.events.after_step.append(after_step)
        sampling = SamplingConfig(temp=0, ignore_eos=True)
        prompt = SENTENCE * job.sentences
        if job.left is not None:  # what an equally long text of small graphs captures stays
            for n in range(2, job.sentences + 1, 2):
                tokens = job.tokens if n + 2 > job.sentences else 1
                for _ in engine.generate(SENTENCE * n, tokens, sampling=sampling):
                    pass
            prompt = "Then " + prompt
            take_all_but(job.left)
        text = "".join(engine.generate(prompt, job.tokens, sampling=sampling))
        memory, n_layers, notes = experts.host_memory, len(experts.layers), engine.notes
        hits = {device.name: device.activations_hit for device in experts.devices}
    steps = [step_between(a, b) for a, b in itertools.pairwise(moments)]
    return Result(text, n_layers, memory, steps, report()["misuse"], notes, hits)


if __name__ == "__main__":
    print(json.dumps(asdict(run(Job(**json.loads(sys.argv[1]))))))
