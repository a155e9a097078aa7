"""Run one cell in a process of its own: ``python -m bench.compare.worker JOB.json RESULT.json spac|stock``.

The library is the one that LLAMA_CPP_LIB_PATH names, or, for spac's jobs, spac's own. A sweep over numbers of
threads (threads.py) loads the model once and changes the number in place. Its first run is a warm-up and is
not counted.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.compare.job import Job, Result

if TYPE_CHECKING:
    from spac.model.pair import ModelPair

ROUNDS = 3  # runs with each number of threads; their median is the result, because machines are noisy


def run_stock(job: Job) -> Result:
    """Run a job on the unpatched library."""
    from bench.compare import stock
    from bench.compare.stock import ThreadPool

    assert "spac" not in sys.modules
    stock.start()
    if job.kind == "threads":
        return sweep_stock(job)
    begun = time.perf_counter()
    pool = ThreadPool(job.threads)
    target = stock.Decoder(job.target, job, pool, job.n_cpu_moe)
    if job.kind == "likelihoods":
        return Result(surprises=stock.likelihoods(target, job.prompts[0]))
    draft = stock.Decoder(job.draft, job, pool) if job.draft and job.draft_length else None
    load_s = time.perf_counter() - begun
    runs = [stock.generate(target, draft, prompt, job.n_predict, job.draft_length) for prompt in job.prompts]
    follow_ups_s = stock.follow_ups(target, draft, job, [*job.prompts[-1], *runs[-1].tokens])
    for each in filter(None, (draft, target)):
        each.close()
    pool.close()
    return Result(runs=[asdict(run) for run in runs], load_s=load_s, follow_ups_s=follow_ups_s)


def run_spac(job: Job) -> Result:
    """Run a job on spac's library."""
    import spac  # noqa: F401  # before llama_cpp: it chooses the library
    from bench.compare import ours
    from spac.model.c_api import echo_log

    echo_log(
        _echo
    )  # a driver's error comes through the log alone, and only the cell's log is left of a crash
    if job.kind == "threads":
        return sweep_spac(job)
    if job.kind == "likelihoods":
        return Result(surprises=ours.likelihoods(job))
    return ours.run(job)


def sweep_stock(job: Job) -> Result:
    """Return tokens per second on the unpatched library with each number of threads."""
    from bench.compare import stock
    from bench.compare.stock import ThreadPool

    # A backend keeps the pool that it computed with last, so all pools live until the contexts are freed.
    pools = {n: ThreadPool(n) for n in job.thread_counts}
    target = stock.Decoder(job.target, job, pools[job.thread_counts[0]], job.n_cpu_moe)

    def speed() -> float:
        return stock.generate(target, None, job.prompts[0], job.n_predict, 0).decode_speed

    speed()
    found: dict[int, list[float]] = {n: [] for n in pools}
    for _ in range(ROUNDS):
        for n, pool in pools.items():
            pool.attach(target.context)
            found[n].append(speed())
            pool.pause()
    speeds = {str(n): median(each) for n, each in found.items()}
    target.close()
    for pool in pools.values():
        pool.close()
    return Result(speeds=speeds)


def sweep_spac(job: Job) -> Result:
    """Return tokens per second on spac with each number of threads."""
    from bench.compare.ours import config_of
    from spac.engine import Engine
    from spac.model.pair import ModelPair

    # spac's pool grows where it has to and never shrinks. Threads that it does not need would still poll, so
    # the numbers go up.
    counts = sorted(job.thread_counts)
    config = config_of(replace(job, threads=counts[0]))
    pair = ModelPair(config, None)
    with Engine(config, pair=pair) as engine:

        def speed() -> float:
            generation = engine.generate(job.prompts[0], job.n_predict)
            for _ in generation:
                pass
            return generation.stats.tokens_per_second or 0.0

        speed()
        speeds = {}
        for n in counts:
            use_threads(pair, n)
            speeds[str(n)] = median(speed() for _ in range(ROUNDS))
    return Result(speeds=speeds)


def use_threads(pair: ModelPair, n: int) -> None:
    """Let the contexts of a loaded pair compute with so many threads from the next batch on."""
    import llama_cpp.llama_cpp as api

    for context in filter(None, (pair.target_context, pair.draft_context)):
        api.llama_set_n_threads(context.pointer, n, n)


def _echo(level: int, text: bytes, _: object) -> None:
    """Write the library's warnings and errors to stderr."""
    if level in (3, 4):
        os.write(2, text)


def main() -> int:
    job_path, result_path, library = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    job = Job.read(job_path)
    try:
        result = run_spac(job) if library == "spac" else run_stock(job)
    except Exception as error:
        result = Result(error=f"{type(error).__name__}: {error}"[:400])
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    replace(result, peak_ram=max(usage) * 1024).write(result_path)
    return 1 if result.error else 0


if __name__ == "__main__":
    sys.exit(main())
