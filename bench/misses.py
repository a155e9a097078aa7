"""Measure where a step's misses are best computed: `python -m bench.misses`.

A random model, or the given one, runs on the simulated device, with links of several speeds. Steps verify 1,
4 or 8 tokens: the model drafts for itself, so every draft is accepted. One engine continues one prompt with
every way of `--miss` in turns, in an order drawn anew for each repeat, so all ways have the same steps. `cpu`
runs twice: the second one, `cpu again`, shows the noise. A figure is the mean time of a text's later
verifications, and `auto` includes its trials. Ratios are to `cpu` in the same repeat, as medians over the
repeats with a 95 % bootstrap interval. The last row has them over the repeats of all rows, since a row's
noise is larger than what may be lost.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.governor.live import interval
from bench.provenance import about, where
from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.misses import Misses

WINDOWS = (1, 4, 8)
LINKS = (4.0, 25.0)
CPU, AGAIN = "cpu", "cpu again"
WAYS = (CPU, AGAIN, "auto")
SCHEDULERS = ("lru", "logistic")
SLOTS = "25%"
WARM = 16
"""Steps of a text before the measured ones."""
COMPARED = 64
"""Steps of each way before the first repeat. `auto` has compared both ways until then."""


def model_of(folder: Path, layers: int, width: int) -> Path:
    """Write a model of `layers` layers of 32 experts in Q4_K, 8 for each token, as wide as the token."""
    from tools.models import Shape, write_model

    shape = Shape(
        n_layer=layers, n_embd=width, n_head=4, n_head_kv=1, n_ff_exp=width // 2, n_expert=32, n_used=8,
        types={"*_exps": "Q4_K"},
    )  # fmt: skip
    return write_model(folder / "model.gguf", "qwen3moe", shape)


def compare(
    model: Path, scheduler: str, window: int, link: float, given: argparse.Namespace
) -> dict[str, Any]:
    """Compare the ways with one scheduler, one window and one link."""
    config = EngineConfig(
        target=model, draft=model if window > 1 else None, device="simulated", threads=1, ctx=2048,
        slots=SLOTS, scheduler=scheduler, governor="fixed", draft_length=window - 1, state="off", miss="auto",
        sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    texts: dict[str, list[tuple[float, float]]] = {way: [] for way in given.ways}
    order = np.random.default_rng(0)
    with Engine(config) as engine:
        _core.set_simulated_device(upload_gb_s=link)
        settings = {way: setting(engine, way) for way in given.ways}
        for way in given.ways:
            run(engine, settings[way], COMPARED, window)
        for _ in range(given.repeats):
            for way in order.permutation(given.ways).tolist():
                texts[way].append(run(engine, settings[way], WARM + given.steps, window))
    _core.set_simulated_device()
    base = np.array(texts[CPU])[:, 0]
    row: dict[str, Any] = {"scheduler": scheduler, "window": window, "link_gb_s": link}
    for way in given.ways:
        seconds, loaded = np.array(texts[way]).T
        ratio, low, high = interval(seconds / base)
        row[way] = {
            "step_ms": 1e3 * median(seconds), "to_cpu": ratio, "low": low, "high": high,
            "loaded": float(loaded.mean()), "ratios": (seconds / base).tolist(),
        }  # fmt: skip
    return row


def together(rows: Sequence[dict[str, Any]], ways: Sequence[str]) -> dict[str, Any]:
    """Return the ratios over the repeats of all rows."""
    found: dict[str, Any] = {}
    for way in ways:
        ratio, low, high = interval(np.concatenate([row[way]["ratios"] for row in rows]))
        found[way] = {"to_cpu": ratio, "low": low, "high": high}
    return found


def setting(engine: Engine, way: str) -> Misses:
    """Return a setting of its own for a way, which keeps what it learns from text to text."""
    cache = engine._at_home
    assert engine.experts is not None
    assert cache.misses is not None
    return Misses(engine.experts, CPU if way == AGAIN else way, by_recency=cache.misses.by_recency)


def run(engine: Engine, misses: Misses, steps: int, window: int) -> tuple[float, float]:
    """Run a text of `steps` steps.

    Return the mean seconds of its later verifications, and the share of its misses that were loaded.
    """
    seconds: list[float] = []

    def note(step: _core.Step) -> None:
        if step.n_verified == window:
            seconds.append(step.verify_ns * 1e-9)

    engine._at_home.misses = misses
    misses.apply()
    engine.events.after_step.append(note)
    generation = engine.generate("a b c d", steps * window)
    for _piece in generation:
        pass
    engine.events.after_step.remove(note)
    stats = generation.stats
    return fmean(seconds[WARM:]), stats.misses_loaded / max(1, stats.misses_loaded + stats.misses_cpu)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF of the model (default: a random one)")
    parser.add_argument("--layers", type=int, default=4, help="of the random model")
    parser.add_argument("--width", type=int, default=2048, help="of the random model")
    parser.add_argument("--links", type=float, nargs="+", default=LINKS, help="GB/s of the device's link")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="tokens of a verification")
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "load"), help="with cpu")
    parser.add_argument("--steps", type=int, default=48, help="measured steps of a text")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    given = parser.parse_args(arguments)
    if CPU not in given.ways:
        parser.error(f"--ways: ratios are to {CPU}, so name it too")
    rows: list[dict[str, Any]] = []
    print(where())
    print(f"scheduler  window  link GB/s   cpu ms  {'ratios to cpu [95 %]':>20}")
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or model_of(Path(folder), given.layers, given.width)
        for scheduler in given.schedulers:
            for window in given.windows:
                for link in given.links:
                    rows.append(compare(model, scheduler, window, link, given))
                    row = rows[-1]
                    case = f"{scheduler:9}  {window:6d}  {link:9g}  {row[CPU]['step_ms']:7.3f}"
                    print(f"{case}  {ratios(row, given.ways)}", flush=True)
                    found = {"slots": SLOTS, "rows": rows, "all": together(rows, given.ways)}
                    if given.out is not None:
                        about_it = about("bench.misses", arguments)
                        given.out.write_text(json.dumps({**about_it, **found}, indent=1) + "\n")
    print(f"{'all':9}  {'':6}  {'':9}  {'':7}  {ratios(together(rows, given.ways), given.ways)}")


def ratios(row: dict[str, Any], ways: Sequence[str]) -> str:
    """Return the text of a row's ratios to `cpu`."""
    return "  ".join(
        f"{way} {row[way]['to_cpu']:.3f} [{row[way]['low']:.3f}-{row[way]['high']:.3f}]"
        + (f", {row[way]['loaded']:.0%} loaded" if "loaded" in row[way] else "")
        for way in ways
        if way != CPU
    )


if __name__ == "__main__":
    main()
