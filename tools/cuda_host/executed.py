"""Run jobs of tools/compare on the executing card, with spac's CUDA library and the unpatched one beside
it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tools.compare import Job, Run, run_worker
from tools.compare.driver import Result
from tools.compare.script import Logits
from tools.cuda_host import jobs

CAPABILITY = 89  # mmvq up to 8 tokens, mmq above
Steps = dict[str, Logits]


class CardError(Exception):
    """The card noticed a misuse, or computed nothing. The message has the card's words."""


@dataclass(frozen=True)
class Card:
    """A package that `build.make_package` made, with folders of translated kernels and for files."""

    package: Path
    stock: Path  # the folder of the unpatched library on the same card
    kernels: Path
    folder: Path

    def spac(self, job: Job, **settings: int) -> Result:
        """Run the job on spac's library. `settings` are the card's: PRETEND_CUDA_…, without the prefix."""
        return self._run("spac", job, settings)

    def reference(self, job: Job, **settings: int) -> Result:
        """Run the job's cases on the unpatched library, all layers on the card."""
        cases = tuple(replace(case, runs=(Run(),)) for case in job.cases)
        return self._run("reference", replace(job, cases=cases), settings)

    def _run(self, library: str, job: Job, settings: dict[str, int]) -> Result:
        report = self.folder / f"{library}.report"
        card = {"CC": CAPABILITY, "EXECUTE": self.kernels, "REPORT": report, **settings}
        # A kernel is compiled when it is first launched, so a gate may wait for long.
        environment = jobs.settings(**card) | {"PYTHONPATH": str(self.package), "SPAC_GATE_TIMEOUT": "0"}
        result = run_worker(
            library,
            replace(job, device=",".join(f"CUDA{i}" for i in range(settings.get("CARDS", 1)))),
            self.folder,
            lib_path=self.stock if library == "reference" else None,
            timeout=1200,  # kernels that are not translated yet take minutes
            environment=environment,
        )
        said = json.loads(report.read_text())
        if said["misuse"] or not said["kernels"]:
            raise CardError(f"{library}: misuse {said['misuse']}, {len(said['kernels'])} kernels")
        return result


def kernels_folder() -> Path:
    """Return the folder of translated kernels: PRETEND_CUDA_EXECUTE, or a folder in the build's."""
    given = os.environ.get("PRETEND_CUDA_EXECUTE")
    return Path(given or Path(os.environ["SPAC_CUDA_BUILD"]) / "kernels").resolve()


def strays(steps: Steps, others: Steps) -> float:
    """Return the share of rows that are more than a tenth of their size away from the other's, or not finite.

    Where weights are quantized, two ways to round differ by some percent. They differ by more where they meet
    a router's near-tie, in some rows of a hundred.
    """
    a, b = (np.concatenate(list(each.values())) for each in (steps, others))
    return float(np.mean(~(np.linalg.norm(a - b, axis=1) <= 0.1 * np.linalg.norm(b, axis=1))))


def finite(steps: Steps) -> bool:
    return all(np.isfinite(logits).all() for logits in steps.values())


def of_batches(steps: Steps, least: int, most: int) -> Steps:
    """Return the steps of the script "batches" with `least` to `most` tokens."""
    return {name: logits for name, logits in steps.items() if least <= int(name.split()[0]) <= most}
