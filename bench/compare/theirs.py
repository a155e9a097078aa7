"""Run llama.cpp's side of the comparison.

Speculation is llama.cpp's simple kind, greedy: a draft model proposes, and the target verifies the draft in
one batch. The loop around the library's calls is Python's. It costs some ten microseconds per step.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from bench.compare.job import Job, Result, Run, pieces, surprises
from bench.unpatched import Model, ThreadPool, start


def run(job: Job) -> Result:
    """Run all prompts, one after another."""
    start()
    begun, pool, draft = time.perf_counter(), ThreadPool(job.threads), None
    # Only the rows that are read get logits, as on spac's side: the other memory holds experts.
    target = Model(
        job.target, pool, device=job.device, ctx=job.ctx, n_cpu_moe=job.n_cpu_moe, no_host=job.no_host,
        rows=job.draft_length + 1,
    )  # fmt: skip
    if job.draft and job.draft_length:
        draft = Model(job.draft, pool, device=job.device, ctx=job.ctx, no_host=job.no_host, rows=1)
    load_s = time.perf_counter() - begun
    runs = [generate(target, draft, prompt, job.n_predict, job.draft_length) for prompt in job.prompts]
    follow_ups_s = follow_ups(target, draft, job, [*job.prompts[-1], *runs[-1].tokens])
    for each in filter(None, (draft, target)):
        each.close()
    pool.close()
    return Result(runs=[asdict(each) for each in runs], load_s=load_s, follow_ups_s=follow_ups_s)


def generate(target: Model, draft: Model | None, prompt: list[int], n_predict: int, length: int) -> Run:
    """Generate greedy text after a prompt, with `length` drafted tokens a step where there is a draft."""
    begun = time.perf_counter()
    for each in filter(None, (target, draft)):
        each.forget(0)
        if len(prompt) > 1:
            each.decode(prompt[:-1], 0)
    target.wait()
    prefilled = time.perf_counter()
    tokens, end, known = list(prompt), len(prompt) + n_predict, len(prompt) - 1
    steps = drafted = accepted = 0
    draft_s = verify_s = 0.0
    first = None
    while len(tokens) < end:
        started = time.perf_counter()
        proposal: list[int] = []
        room = min(length, end - len(tokens) - 1)
        if draft is not None and room > 0:
            draft.decode(tokens[known:], known, logits="last")
            proposal.append(draft.best(-1))
            while len(proposal) < room:
                draft.decode(proposal[-1:], len(tokens) + len(proposal) - 1, logits="last")
                proposal.append(draft.best(-1))
        position = len(tokens) - 1
        proposed = time.perf_counter()
        target.decode([tokens[-1], *proposal], position, logits="all")
        target.wait()
        verified = time.perf_counter()
        kept = 0
        while True:
            token = target.best(kept)
            tokens.append(token)
            if kept == len(proposal) or proposal[kept] != token:
                break
            kept += 1
        target.forget(position + 1 + kept)
        if draft is not None:
            known = position + 1 + min(kept, max(0, len(proposal) - 1)) if proposal else known
            draft.forget(known)
        steps, drafted, accepted = steps + 1, drafted + len(proposal), accepted + kept
        draft_s, verify_s = draft_s + proposed - started, verify_s + verified - proposed
        first = first or time.perf_counter()
    return Run(
        prompt_tokens=len(prompt), prefill_s=prefilled - begun, first_token_s=(first or prefilled) - begun,
        decode_s=time.perf_counter() - prefilled, tokens=tokens[len(prompt) :], steps=steps, drafted=drafted,
        accepted=accepted, figures={"draft_s": draft_s, "verify_s": verify_s},
    )  # fmt: skip


def follow_ups(target: Model, draft: Model | None, job: Job, text: list[int]) -> list[float]:
    """Return the seconds to the first token of follow-ups behind a text, of which all but the last token is
    in the memory. The draft reads them too, since it goes on from there."""
    text, found = list(text), []
    for tokens in job.follow_ups(len(text)):
        text += tokens
        begun = time.perf_counter()
        if draft is not None:
            draft.decode(text[draft.n_past : -1], draft.n_past)
        target.decode(text[target.n_past :], target.n_past, logits="last")
        text.append(target.best(-1))
        found.append(time.perf_counter() - begun)
    return found


def likelihoods(job: Job) -> Result:
    """Return the surprise of all tokens of the first prompt but the first, each after those before it."""
    start()
    target = Model(
        job.target, ThreadPool(job.threads), device=job.device, ctx=job.ctx, n_cpu_moe=job.n_cpu_moe,
        repack=False, offload=False,
    )  # fmt: skip
    found: list[float] = []
    for at, piece, following in pieces(job.prompts[0]):
        target.decode(piece, at, logits="all")
        found += surprises(target.rows(len(piece)), following)
    return Result(surprises=found)
