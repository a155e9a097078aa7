"""Compare two libraries on the same inputs, every logit bit for bit. README.md describes the reference and
the reasons."""

from tools.compare.driver import compare, reference_library, run_worker
from tools.compare.job import HALF, Case, Difference, Job, Run, Settings

__all__ = [
    "HALF", "Case", "Difference", "Job", "Run", "Settings", "compare", "reference_library", "run_worker",
]  # fmt: skip
