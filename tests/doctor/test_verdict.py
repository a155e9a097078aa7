"""The doctor's first line says what runs here, and what to change first."""

from __future__ import annotations

import pytest

from spac.doctor.trial import Finding
from spac.doctor.verdict import verdict

NO_DRIVER = Finding("driver", "off", "none", "no NVIDIA driver")
NO_BUILD = Finding("cuda-build", "off", "no", "built without CUDA")
GPU = Finding("gpu", "ok", "CUDA0, NVIDIA GeForce RTX 3060, 11.0 GiB of 12.0 GiB free")
FIT = Finding("fit", "ok", "a.gguf: 1 GiB beside the experts, 16 GiB of experts, 60% of them fit")
UNPINNED = Finding("pinning", "off", "2 GiB", "raise the limit")
BROKEN = Finding("library", "fault", "-", "spac is not built")
NO_EXTRA = Finding("extra-hf", "off", "no", "not installed: huggingface_hub")


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([NO_BUILD, NO_DRIVER], "Models run here on the CPU alone; to change: no NVIDIA driver."),
        ([NO_BUILD], "Models run here on the CPU alone; to change: built without CUDA."),
        ([NO_BUILD, GPU, NO_EXTRA], "Models run here on CUDA0 and the CPU together; to change: nothing."),
        (
            [GPU, FIT, UNPINNED],
            f"Models run here on CUDA0 and the CPU together; {FIT.found}; to change: raise the limit.",
        ),
        ([BROKEN, GPU], "Models may not run here; to change: library: spac is not built."),
        (
            [BROKEN, BROKEN],
            "Models may not run here; to change: library: spac is not built (and 1 more, marked !).",
        ),
    ],
)
def test_the_sentence(findings, said):
    assert verdict(findings) == said
