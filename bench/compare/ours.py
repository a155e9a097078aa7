"""Run spac's side: the same prompts through its engine."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.compare.job import NO_GPU, Job, Result, Run
from bench.compare.likelihood import PIECE, surprises
from bench.schedulers.belady import belady
from spac import _core
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.config.engine import MISS_WORDS
from spac.doctor.selftest import decode as logits
from spac.engine import Engine
from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.model.pair import ModelPair
from spac.stats import RunStats


def paging_of(job: Job) -> str:
    """Return the job's paging mode; beside a GPU, "auto" is "off".

    "auto" looks at the memory that is left, so a machine with little memory would page without a request.
    """
    on_gpu = job.device.lower() not in NO_GPU
    return "off" if job.paging == "auto" and on_gpu else job.paging


def config_of(job: Job) -> EngineConfig:
    """Return the job's configuration: greedy, and the text never ends early."""
    draft = {"draft_max" if job.governor else "draft_length": job.draft_length}
    scheduler, miss = with_misses(job.scheduler)
    return EngineConfig(
        target=job.target, draft=job.draft, device=job.device, slots=job.slots, scheduler=scheduler,
        miss=miss, ctx=job.ctx, threads=job.threads, lookahead=job.lookahead, cache_ram=0,
        paging=paging_of(job), state="off", **draft,
        sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip


def with_misses(name: str) -> tuple[str, str]:
    """Return the values of --scheduler and --miss that a name means: "lru load" has both, "lru" has "cpu".

    Raise InputError for another second word.
    """
    scheduler, _, miss = name.partition(" ")
    if miss and miss not in MISS_WORDS:
        raise InputError(f"misses are computed by {', '.join(MISS_WORDS)}, not '{miss}'")
    return scheduler, miss or "cpu"


def run(job: Job) -> Result:
    """Run all prompts, one after another. Times of decoding are the clock's, with everything between the
    steps."""
    found = []
    with Engine(config_of(job)) as engine:
        watch = Watch(engine)
        for prompt in job.prompts:
            watch.queue_ns.clear()
            before, begun = _counts(engine), time.perf_counter()
            generation = engine.generate(prompt, job.n_predict)
            for _ in generation:
                pass
            took = time.perf_counter() - begun
            stats = generation.stats
            counts = {name: value - before[name] for name, value in _counts(engine).items()}
            one = Run(
                prompt_tokens=len(prompt), prefill_s=stats.prefill_s,
                first_token_s=stats.time_to_first_token_s or 0.0, decode_s=took - stats.prefill_s,
                tokens=generation.tokens, steps=stats.steps, drafted=stats.drafted_tokens,
                accepted=stats.accepted_tokens,
                figures={**figures_of(stats, counts), "queue_s": watch.queue_s},
                counted=max(0, len(generation.tokens) - 1),  # The first token comes with the prompt.
            )  # fmt: skip
            found.append(asdict(one))
        bound = watch.bound()
        return Result(
            runs=found,
            load_s=stats.load_s,
            notes=engine.notes,
            bound=bound,
            follow_ups_s=follow_ups(engine, job, [*job.prompts[-1], *generation.tokens]),
            **memory_of(engine, stats),
        )


def follow_ups(engine: Engine, job: Job, text: list[int]) -> list[float]:
    """Return the seconds to the first token of follow-ups, each behind `text` and the follow-ups before."""
    found = []
    for tokens in job.follow_ups(len(text)):
        text = [*text, *tokens]
        generation = engine.generate(text, 1)
        for _ in generation:
            pass
        text += generation.tokens
        found.append(generation.stats.time_to_first_token_s or 0.0)
    return found


def memory_of(engine: Engine, stats: RunStats) -> dict[str, Any]:
    """Return how the experts lay in host memory, by the names of a result's fields."""
    experts = engine.experts
    return {
        "paged": stats.paged,
        "pinned_bytes": experts.host_bytes.pinned if experts is not None else 0,
        "host_memory": experts.host_memory if experts is not None else "",
    }


class Watch:
    """Figures that the engine does not have, taken after every step."""

    def __init__(self, engine: Engine) -> None:
        self._experts = engine.experts
        self._demand: list[Int32Array] = []
        self.queue_ns: list[int] = []
        if engine.experts is not None:
            engine.events.after_step.append(self._after_step)

    def _after_step(self, step: _core.Step) -> None:
        assert self._experts is not None
        self._demand.append(step.demand.copy())
        self.queue_ns.append(self._experts.stats["queue_ns"])

    @property
    def queue_s(self) -> float | None:
        """Return the time of calls that queue work, for all steps of a run. The first step is taken to cost
        the mean of the others."""
        n = len(self.queue_ns)
        return (self.queue_ns[-1] - self.queue_ns[0]) / (n - 1) * n / 1e9 if n > 1 else None

    def bound(self) -> float | None:
        """Return Belady's rate of hits of distinct experts over all steps so far, in the same number of
        slots."""
        if self._experts is None or not self._demand or not any(self._experts.pool_slots):
            return None
        pools = [layer.pool for layer in self._experts.layers]
        return belady(np.stack(self._demand), pools, self._experts.pool_slots).hit_rate_distinct


def figures_of(stats: RunStats, counts: dict[str, int]) -> dict[str, Any]:
    """Return what a run took and moved. `counts`: what the mechanism counted over it, its prompt included."""
    kept = (
        "hit_rate", "hit_rate_distinct", "host_wait_s", "host_waits", "host_compute_s", "draft_s", "verify_s",
        "sample_s", "scheduler_s", "uploads", "upload_s", "uploads_wasted", "activations",
        "slots", "slot_bytes", "expert_bytes", "disk_bytes",
    )  # fmt: skip
    found = {name: getattr(stats, name) for name in kept}
    found["bytes_moved"] = dict(stats.bytes_moved)
    return found | {name: counts.get(name) for name in ("distinct", "distinct_hit", "stream_bytes")}


def _counts(engine: Engine) -> dict[str, int]:
    """Return the mechanism's counters since the model was loaded."""
    return dict(engine.experts.stats) if engine.experts is not None else {}


def make_resident(pair: ModelPair, slots: str) -> None:
    """Fill the slots, with a third of each layer's experts first. Do nothing where there are none."""
    if pair.experts is None:
        return
    pair.experts.attach_slots(Slots.parse(slots).of(sum(layer.n_expert for layer in pair.experts.layers)))
    counts = [layer.n_expert for layer in pair.experts.layers]
    priority = np.tile(np.arange(max(counts)) % 3, (len(counts), 1)).astype(np.int32)
    pair.experts.submit(priority, np.zeros(len(counts), np.int32))
    pair.experts.settle(60.0)


def likelihoods(job: Job) -> list[float]:
    """Return the surprise of all tokens of the first prompt except the first, with the job's share of the
    experts resident."""
    tokens, found = job.prompts[0], []
    pair = ModelPair(config_of(job), None)
    try:
        make_resident(pair, job.slots)
        for start in range(0, len(tokens) - 1, PIECE):
            piece = tokens[start : min(start + PIECE, len(tokens) - 1)]
            found += surprises(logits(pair, piece, start), tokens[start + 1 : start + 1 + len(piece)])
    finally:
        pair.close()
    return found
