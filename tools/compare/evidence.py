"""Compare the unpatched library with itself under other settings: ``python -m tools.compare.evidence``.

It prints the tables of README.md: which settings change a bit of the logits, and therefore have to be equal
on both sides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.compare.driver import Result, first_difference, reference_library, run_worker
from tools.compare.job import Case, Job, Settings
from tools.models import Shape, write_model

# Rows of 256 fit every type.
WIDE = Shape(n_layer=2, n_expert=8, n_embd=256, n_head=8, n_ff_exp=256)
TYPES = [
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "IQ4_NL"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "IQ3_S", "TQ2_0"),
]
VARIANTS = {
    "repacked (the default)": {"repack": True},
    "2 threads": {"settings": Settings(n_threads=2)},
    "ubatch 64": {"settings": Settings(n_ubatch=64)},
    "token by token": {"settings": Settings(n_batch=1, n_ubatch=1)},
    "flash attention": {"settings": Settings(flash_attn=True)},
}


def cases(folder: Path) -> Iterator[tuple[str, str, Case]]:
    """Yield (weight type, variant, case). The variant "" is the reference."""
    for name in TYPES:
        path = str(write_model(folder / f"{name}.gguf", "qwen3moe", replace(WIDE, types={"*": name})))
        yield name, "", Case(name, path)
        for variant, changes in VARIANTS.items():
            yield name, variant, replace(Case(f"{name} {variant}", path), **changes)  # type: ignore[arg-type]
        flash = Settings(n_threads=2, flash_attn=True)
        yield name, "flash attention, 2 threads", Case(f"{name} flash 2", path, flash)


def describe(case: Case, base: Case, result: Result) -> str:
    """Return "equal", or the first step that differs and the largest difference while both pick the same
    tokens."""
    steps, expected = (result.logits[c.name, "reference"] for c in (case, base))
    found = first_difference(case.name, "", steps, expected)
    if found is None:
        return "equal"
    largest = 0.0
    for step, logits in steps.items():
        largest = max(largest, float(np.abs(logits - expected[step]).max()))
        if (logits.argmax(axis=1) != expected[step].argmax(axis=1)).any():
            break
    return f"{found.step}: {largest:.2g}"


def main() -> int:
    """Print a Markdown table. Return 2 when there is no unpatched library."""
    library = reference_library()
    if library is None:
        print(
            "no stock library: build with -DSPAC_BUILD_REFERENCE=ON or set SPAC_REFERENCE_LIB",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = list(cases(folder))
        result = run_worker(
            "reference", Job(tuple(case for _, _, case in made)), folder, lib_path=library, timeout=1800
        )
    variants = [*VARIANTS, "flash attention, 2 threads"]
    by_key = {(kind, variant): case for kind, variant, case in made}
    print("| weights | " + " | ".join(variants) + " |\n|" + " --- |" * (len(variants) + 1))
    for kind in TYPES:
        # Threads under flash attention are compared with flash attention on one thread.
        bases = {v: by_key[kind, "flash attention" if "," in v else ""] for v in variants}
        cells = [describe(by_key[kind, v], bases[v], result) for v in variants]
        print(f"| {kind} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
