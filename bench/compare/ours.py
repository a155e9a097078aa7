"""spac's side: the same prompts through its engine."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

from bench.compare.job import Job, Run
from bench.compare.likelihood import surprise
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.engine import Engine
from spac.pair import ModelPair


def config_of(job: Job) -> EngineConfig:
    """As the job says; greedy, and never an end of the text."""
    draft: dict[str, Any] = {"draft_length": job.draft_length}
    if job.governor:
        draft = {"governor": job.governor, "draft_max": job.draft_length}
    return EngineConfig(
        target=job.target, draft=job.draft, device=job.device, slots=job.slots, scheduler=job.scheduler,
        ctx=job.ctx, threads=job.threads, sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True), **draft,
    )  # fmt: skip


def run(job: Job) -> tuple[list[Run], float, list[str]]:
    """The runs, the seconds that loading took, and what the engine notes."""
    found = []
    with Engine(config_of(job)) as engine:
        for prompt in job.prompts:
            before = _counts(engine)
            generation = engine.generate(prompt, job.n_predict)
            for _ in generation:
                pass
            assert engine.session is not None
            stats = generation.stats
            tokens = engine.session.tokens[len(prompt) : len(prompt) + job.n_predict].tolist()
            counts = {name: value - before[name] for name, value in _counts(engine).items()}
            found.append(
                Run(
                    prompt_tokens=len(prompt), prefill_s=stats.prefill_s,
                    first_token_s=stats.time_to_first_token_s or 0.0, decode_s=stats.decode_s, tokens=tokens,
                    steps=stats.steps, drafted=stats.drafted_tokens, accepted=stats.accepted_tokens,
                    figures={
                        "hit_rate": stats.hit_rate, "hit_rate_distinct": stats.hit_rate_distinct,
                        "host_wait_s": stats.host_wait_s, "host_waits": stats.host_waits,
                        "host_compute_s": stats.host_compute_s, "draft_s": stats.draft_s,
                        "verify_s": stats.verify_s, "uploads": stats.uploads,
                        "bytes_moved": dict(stats.bytes_moved),
                        "activations": stats.activations, "slots": stats.slots,
                        "slot_bytes": stats.slot_bytes,
                        "distinct": counts.get("distinct"), "distinct_hit": counts.get("distinct_hit"),
                    },
                )
            )  # fmt: skip
        notes = engine.notes
    return found, stats.load_s, notes


def _counts(engine: Engine) -> dict[str, int]:
    """The mechanism's counters since the model was loaded."""
    return dict(engine.experts.stats) if engine.experts is not None else {}


def perplexity(job: Job) -> float:
    """Of the first prompt, with the job's share of the experts resident, a third of each layer's first."""
    config = config_of(job)
    pair = ModelPair(config, None)
    try:
        if pair.experts is not None:
            counts = [layer.n_expert for layer in pair.experts.layers]
            pair.experts.attach_slots(Slots.parse(job.slots).of(sum(counts)))
            priority = np.tile(np.arange(max(counts)) % 3, (len(counts), 1)).astype(np.int32)
            pair.experts.submit(priority, np.zeros(len(counts), np.int32))
            pair.experts.settle(60.0)
        return _perplexity(pair, job.prompts[0])
    finally:
        pair.close()


def _perplexity(pair: ModelPair, tokens: list[int]) -> float:
    context = pair.target_context.pointer
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(pair.target.pointer))
    batch = api.llama_batch_init(512, 0, 1)
    total = 0.0
    for start in range(0, len(tokens) - 1, 512):
        piece = tokens[start : min(start + 512, len(tokens) - 1)]
        batch.n_tokens = len(piece)
        for i, token in enumerate(piece):
            batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if status := api.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status} at position {start}")
        rows = np.ctypeslib.as_array(api.llama_get_logits(context), (len(piece), n_vocab))
        total += surprise(rows, tokens[start + 1 : start + 1 + len(piece)])
    api.llama_batch_free(batch)
    return float(np.exp(total / (len(tokens) - 1)))
