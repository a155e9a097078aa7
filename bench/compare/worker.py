"""Run one cell in a process of its own: ``python -m bench.compare.worker JOB.json RESULT.json spac|stock``.

The library is the one that LLAMA_CPP_LIB_PATH names, or, for spac's jobs, spac's own.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench.compare.job import Job, Result


def run_stock(job: Job) -> Result:
    """Run a job on the unpatched library."""
    from bench.compare import stock, sweep
    from bench.compare.pool import ThreadPool

    assert "spac" not in sys.modules
    stock.start()
    if job.kind == "threads":
        return sweep.of_stock(job)
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
    from bench.compare import ours, sweep
    from spac.model.c_api import echo_log

    echo_log(
        _echo
    )  # a driver's error comes through the log alone, and only the cell's log is left of a crash
    if job.kind == "threads":
        return sweep.of_spac(job)
    if job.kind == "likelihoods":
        return Result(surprises=ours.likelihoods(job))
    return ours.run(job)


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
