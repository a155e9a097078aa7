"""Run one cell in a process of its own: ``python -m bench.compare.worker JOB.json RESULT.json ours|theirs``.

The library is the one that LLAMA_CPP_LIB_PATH names, or, for `ours`, spac's own.
"""

from __future__ import annotations

import importlib
import resource
import sys
from dataclasses import replace
from pathlib import Path

from bench.compare.job import Job, Result


def main() -> int:
    job_path, result_path, side = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    job = Job.read(job_path)
    try:
        module = importlib.import_module(f"bench.compare.{side}")
        result = (module.likelihoods if job.kind == "likelihoods" else module.run)(job)
    except Exception as error:
        result = Result(error=f"{type(error).__name__}: {error}"[:400])
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    replace(result, peak_ram=max(usage) * 1024).write(result_path)
    return 1 if result.error else 0


if __name__ == "__main__":
    sys.exit(main())
