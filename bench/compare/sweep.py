"""Choose threads in a worker: a short run with each number (threads.py).

The model is loaded once, and the number is changed in place. The first run is a warm-up and is not counted.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import llama_cpp.llama_cpp as api

from bench.compare.job import Job, Result
from bench.compare.pool import ThreadPool

if TYPE_CHECKING:
    from spac.model.pair import ModelPair

ROUNDS = 3  # runs with each number of threads; their median is the result, because machines are noisy


def of_stock(job: Job) -> Result:
    """Return tokens per second on the unpatched library."""
    from bench.compare import stock

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


def of_spac(job: Job) -> Result:
    """Return tokens per second on spac."""
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
    for context in filter(None, (pair.target_context, pair.draft_context)):
        api.llama_set_n_threads(context.pointer, n, n)
