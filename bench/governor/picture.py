"""Draw the Amortization Roofline (MoE-SpeQ, Fig. 8) of a governor's learned costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def draw(sets: dict[str, dict[str, Any]], to: Path) -> None:
    """Draw one panel per set. The format follows the file's ending."""
    columns = min(4, len(sets))
    rows = -(-len(sets) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.9 * rows), squeeze=False)
    for panel in panels.ravel()[len(sets) :]:
        panel.remove()
    for panel, (name, data) in zip(panels.ravel(), sets.items(), strict=False):
        _panel(panel, data["curve"])
        panel.set_title(name)
    figure.suptitle(
        "Amortization Roofline: tokens per second by tokens per MB of missing experts, draft length k"
    )
    figure.tight_layout()
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None)
    plt.close(figure)


def _panel(panel: Any, curve: dict[str, Any]) -> None:
    tokens, cycle, compute, missed = (
        np.array(curve[name]) for name in ("tokens", "cycle", "compute", "missed")
    )
    theta, roofs = tokens / cycle, tokens / compute
    panel.set_xlabel("amortization intensity, tokens/MB")
    panel.set_ylabel("Θ, tokens/s")
    megabytes = missed * curve["expert_bytes"] / 1e6
    if not megabytes.any():  # without misses intensity is infinite: only the compute roofs exist
        panel.plot(np.arange(len(theta)), theta, "o-")
        panel.set_xlabel("draft length k")
        return
    intensity = tokens / megabytes
    reach = np.array([intensity.min() / 1.5, intensity.max() * 2])
    shades = plt.cm.viridis(np.linspace(0, 0.9, len(tokens)))
    slope = curve["expert_bytes"] / 1e6 / curve["price"]  # MB/s at which misses are computed (or fetched)
    panel.plot(reach, slope * reach, color="black", label=f"misses' roof, {slope / 1e3:.2g} GB/s")
    for k, shade in enumerate(shades):
        label = "compute roofs" if k == 0 else None
        panel.hlines(roofs[k], *reach, color=shade, linewidth=0.8, alpha=0.6, label=label)
        panel.plot(intensity[k], theta[k], "o", color=shade, markersize=5)
        panel.annotate(
            str(k), (intensity[k], theta[k]), xytext=(4, 4), textcoords="offset points", fontsize=7
        )
    best = curve["in_force"]
    panel.plot(intensity[best], theta[best], "*", color="crimson", markersize=15, label=f"chosen, k = {best}")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(theta.min() / 1.3, max(roofs.max() * 1.6, 2 * slope * reach[0]))
    panel.set_xlim(*reach)
    panel.legend(fontsize=7, loc="lower right")
