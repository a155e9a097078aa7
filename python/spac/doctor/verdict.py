"""The sentence that `spac doctor` begins with: what runs here, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from spac.doctor.trial import Finding

_OF_GPUS = ("driver", "cuda-build", "gpu")
"""The checks that say why there is no GPU, the cause first."""
_OF_SPEED = ("kernels", "fit", "experts", "split", "pinning", "expert-memory", "cpu", "cpu kernels")
"""The checks whose findings slow models down, the heaviest first."""


def verdict(findings: Sequence[Finding]) -> str:
    """Return one sentence: if models run here, on what, how much of a model fits, and what to change."""
    faults = [finding for finding in findings if finding.state == "fault"]
    if faults:
        more = f" (and {len(faults) - 1} more, marked !)" if len(faults) > 1 else ""
        return f"Models may not run here; to change: {faults[0].name}: {faults[0].why}{more}."
    gpus = [finding for finding in findings if finding.name == "gpu" and finding.state == "ok"]
    names = ", ".join(finding.found.partition(",")[0] for finding in gpus)
    where = f"on {names} and the CPU together" if gpus else "on the CPU alone"
    fits = "".join(f"; {finding.found}" for finding in findings if finding.name == "fit")
    return f"Models run here {where}{fits}; to change: {_change(findings, has_gpu=bool(gpus))}."


def _change(findings: Sequence[Finding], *, has_gpu: bool) -> str:
    for name in _OF_SPEED if has_gpu else (*_OF_GPUS, *_OF_SPEED):
        for finding in findings:
            if finding.name == name and finding.state == "off":
                return finding.why
    return "nothing"
