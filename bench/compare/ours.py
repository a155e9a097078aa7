"""Run spac's side of the comparison: the same prompts through its engine."""

from __future__ import annotations

import os
import time
from dataclasses import asdict

import numpy as np

from bench.compare.job import NO_GPU, Job, Result, Run, pieces, surprises
from bench.schedulers.belady import belady
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.config.engine import MISS_WORDS
from spac.doctor.selftest import decode as logits
from spac.engine import Engine
from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.model.c_api import echo_log
from spac.model.pair import ModelPair

FIGURES = (
    "hit_rate", "hit_rate_distinct", "host_wait_s", "host_waits", "host_compute_s", "draft_s", "verify_s",
    "sample_s", "scheduler_s", "uploads", "upload_s", "uploads_wasted", "activations",
    "slots", "slot_bytes", "expert_bytes", "disk_bytes",
)  # fmt: skip
"""The statistics of a run that a result keeps."""


def echo(level: int, text: bytes, _: object) -> None:
    """Write warnings and errors to stderr: a driver's error comes through the library's log alone."""
    if level in (3, 4):
        os.write(2, text)


def config_of(job: Job) -> EngineConfig:
    """Return the job's configuration: greedy, and the text never ends early.

    Beside a GPU nothing is paged where the job leaves it open: "auto" looks at the memory that is left, so a
    machine with little memory would page without a request. A scheduler's second word is the value of --miss:
    "lru load" is a plain expert cache. Raise InputError for another second word.
    """
    scheduler, _, miss = job.scheduler.partition(" ")
    if miss and miss not in MISS_WORDS:
        raise InputError(f"misses are computed by {', '.join(MISS_WORDS)}, not '{miss}'")
    on_gpu = job.device.lower() not in NO_GPU
    draft = {"draft_max" if job.governor else "draft_length": job.draft_length}
    return EngineConfig(
        target=job.target, draft=job.draft, device=job.device, slots=job.slots, scheduler=scheduler,
        miss=miss or "cpu", ctx=job.ctx, threads=job.threads, lookahead=job.lookahead, cache_ram=0,
        paging="off" if job.paging == "auto" and on_gpu else job.paging, state="off", **draft,
        sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip


def run(job: Job) -> Result:
    """Run all prompts, one after another. Times of decoding are the clock's, with everything between the
    steps."""
    echo_log(echo)
    found, demand = [], list[Int32Array]()
    with Engine(config_of(job)) as engine:
        experts = engine.experts
        if experts is not None:
            engine.events.after_step.append(lambda step: demand.append(step.demand.copy()))
        for prompt in job.prompts:
            begun = time.perf_counter()
            generation = engine.generate(prompt, job.n_predict)
            for _ in generation:
                pass
            took, stats = time.perf_counter() - begun, generation.stats
            figures = {name: getattr(stats, name) for name in FIGURES}
            found.append(asdict(Run(
                prompt_tokens=len(prompt), prefill_s=stats.prefill_s,
                first_token_s=stats.time_to_first_token_s or 0.0, decode_s=took - stats.prefill_s,
                tokens=generation.tokens, steps=stats.steps, drafted=stats.drafted_tokens,
                accepted=stats.accepted_tokens, figures=figures,
                counted=max(0, len(generation.tokens) - 1),  # The first token comes with the prompt.
            )))  # fmt: skip
        bound = None
        if experts is not None and demand and any(experts.pool_slots):
            pools = [layer.pool for layer in experts.layers]
            bound = belady(np.stack(demand), pools, experts.pool_slots).hit_rate_distinct
        return Result(
            runs=found, load_s=stats.load_s, notes=engine.notes, bound=bound, paged=stats.paged,
            pinned_bytes=experts.host_bytes.pinned if experts is not None else 0,
            host_memory=experts.host_memory if experts is not None else "",
            follow_ups_s=follow_ups(engine, job, [*job.prompts[-1], *generation.tokens]),
        )  # fmt: skip


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


def make_resident(pair: ModelPair, slots: str) -> None:
    """Fill the slots, with a third of each layer's experts first. Do nothing where there are none."""
    if pair.experts is None:
        return
    counts = [layer.n_expert for layer in pair.experts.layers]
    pair.experts.attach_slots(Slots.parse(slots).of(sum(counts)))
    priority = np.tile(np.arange(max(counts)) % 3, (len(counts), 1)).astype(np.int32)
    pair.experts.submit(priority, np.zeros(len(counts), np.int32))
    pair.experts.settle(60.0)


def likelihoods(job: Job) -> Result:
    """Return the surprise of all tokens of the first prompt except the first, with the job's share of the
    experts resident."""
    echo_log(echo)
    pair, found = ModelPair(config_of(job), None), list[float]()
    try:
        make_resident(pair, job.slots)
        for at, piece, following in pieces(job.prompts[0]):
            found += surprises(logits(pair, piece, at), following)
    finally:
        pair.close()
    return Result(surprises=found)
