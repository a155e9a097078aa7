"""Two libraries, the same inputs, every logit compared bit for bit. README.md says what the reference is and
why."""

from tools.compare.driver import compare, reference_library, run_worker
from tools.compare.job import Case, Difference, Job, Run, Settings

__all__ = ["Case", "Difference", "Job", "Run", "Settings", "compare", "reference_library", "run_worker"]
