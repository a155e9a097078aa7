"""A comparison on the simulated device, on one budget and one short context."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.compare.comparison import Comparison, filled, options


def comparison_of(
    twin: tuple[Path, Path], out: Path, *more: str, device: str = "simulated", draft: bool = True
) -> Comparison:
    parser = argparse.ArgumentParser()
    options(parser)
    words = [str(out), "--target", str(twin[0]), "--device", device, "--reference", str(out)]
    words += ["--budgets", "50%", "--contexts", "64", "--schedulers", "lru"]
    words += ["--draft", str(twin[1])] if draft else []
    return Comparison(filled(parser.parse_args([*words, *more])))
