"""The data of the page's charts, which `charts.js` draws: titles, axes and series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spac.machine.arrays import Float64Array
from spac.report.figures import Part, Recording, rate, rows, smooth, time_parts
from spac.stats.words import number, percent, seconds, size

Chart = dict[str, Any]

POINTS = 240  # the most rows along an axis; more could not be seen
BANDS = 30  # a point of a smoothed curve covers one BANDS-th of the rows

PINK, BLUE, SKY, RED, ORANGE, GREEN, VIOLET, GREY, INK = range(9)  # --c0 … --c8 in page.css


class Charts:
    """Makes the charts of one recording, by the names of their places in the page."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._content = recording, recording.content
        self._c = rows(recording, POINTS)
        self._steps = self._c["steps"]
        self._width = max(1, len(self._steps) // BANDS)
        self.n_step = int(self._steps.sum())

    def all(self) -> dict[str, Chart]:
        """Return the charts that have data, by name."""
        if not self.n_step:
            return {}
        charts = {"time": self._time(), "speed": self._speed()}
        if self._c["drafted"].any() or self._c["draft_length"].any():
            charts |= {"draft": self._draft(), "roofline": self._roofline()}
        if self._content["experts"] is not None:
            charts |= {"hits": self._hits(), "moved": self._moved(), "swaps": self._swaps()}
            charts |= self._layers()
        if self._content["thresholds"] is not None and self._content["thresholds"]["steps"]:
            charts["threshold"] = self._threshold()
        return charts

    def parts(self) -> list[Part]:
        """Return the parts of the steps' time; in each row they add up to the whole time."""
        return time_parts(self._c)

    def _over_steps(self, title: str, unit: str, series: list[Chart], **more: Any) -> Chart:
        """Return a chart over the steps; a series has a value for each row, unless `more` has another x."""
        x_range = [0.5, self.n_step + 0.5]
        axis = {"group": "steps", "x": _middles(self._steps), "x_label": "step", "x_range": x_range}
        return {"kind": "lines", **axis, "title": title, "unit": unit, "series": series, **more}

    def _per_step(self, column: str) -> Float64Array:
        return self._c[column] / self._steps

    def _smooth(self, part: str, whole: str, scale: float = 1) -> list[float | None]:
        return rate(smooth(self._c[part], self._width) * scale, smooth(self._c[whole], self._width))

    def _share(self, part: str, whole: str) -> float | None:
        total = float(self._c[whole].sum())
        return float(self._c[part].sum()) / total if total else None

    # Experts

    def _hits(self) -> Chart:
        slots, n = self._recording.stats.get("slots") or 0, self._recording.stats.get("n_experts") or 0
        series = []
        for name, part, whole, colour in (
            ("activations", "activations_hit", "activations", BLUE),
            ("distinct experts", "distinct_hit", "distinct", GREEN),
        ):
            values, total = self._smooth(part, whole), percent(self._share(part, whole))
            series.append(_series(name, colour, values, total=total))
        every = rate(self._c["activations_hit"], self._c["activations"])
        series.insert(0, _series("activations, each step", BLUE, every, style="faint"))
        marks = [{"y": slots / n, "label": f"slots: {percent(slots / n)} of the experts"}] if n else []
        return self._over_steps("Hit rate", "%", series, y_range=[0, 1], marks=marks)

    def _threshold(self) -> Chart:
        """Return the chart of the threshold τ over time."""
        part = self._content["thresholds"]
        steps, levels = np.array(part["steps"], float), part["levels"]
        each = np.array(part["sums"], float) / steps[:, None]
        low, high, mean = each.min(1), each.max(1), each.mean(1)
        series = [
            _series("lowest to highest layer", VIOLET, high.tolist(), style="band", low=low.tolist()),
            _series("mean of the layers", VIOLET, mean.tolist(), style="step", total=number(mean.mean())),
        ]
        more = {"x": _middles(steps), "y_range": [0, levels + 0.5], "y_whole": True}
        return self._over_steps("Threshold τ", "", series, **more)

    def _layers(self) -> dict[str, Chart]:
        by = {name: np.array(sums, float) for name, sums in self._content["experts"]["by_layer"].items()}
        if not by:
            return {}
        n = len(by["host_ns"])
        axis = {"x": list(range(n)), "x_label": "MoE layer", "x_range": [-0.5, n - 0.5], "group": "layer"}
        device = by["device_activations"]
        hits = [_series("activations on the device", BLUE, rate(device, by["host_activations"] + device))]
        times = []
        for name, column, colour in (("CPU experts", "host_ns", RED), ("host waits", "wait_ns", SKY)):
            values, total = by[column] / self.n_step / 1e6, f"{seconds(by[column].sum() / 1e9)} in all"
            times.append(_series(name, colour, values.tolist(), total=total))
        bars = {"kind": "bars", "height": 180, **axis}
        of_hits = {"title": "Hit rate by layer", "unit": "%", "y_range": [0, 1], "series": hits}
        of_times = {"title": "Time by layer, per step", "unit": "ms", "series": times}
        return {"layer_hits": {**bars, **of_hits}, "layer_times": {**bars, **of_times}}

    # Time

    def _time(self) -> Chart:
        parts, c = self.parts(), self._c
        total, series = float(c["time_ns"].sum()) or 1.0, []
        for i, part in enumerate(parts):
            values, share = (part.ns / self._steps / 1e6).tolist(), percent(float(part.ns.sum()) / total)
            series.append(_series(part.name, i, values, total=share, hint=part.explanation))
        if self._content["device"] is not None and c["device_ns"].any():
            at_most = " (at most)" if self._content["device"] == "at most" else ""
            name = f"device experts, beside it{at_most}"
            hint = "the device's own time on experts while the CPU computes or waits: no part of the sum"
            share, values = percent(self._share("device_ns", "time_ns")), self._per_step("device_ns") / 1e6
            series.append(_series(name, INK, values.tolist(), style="dash", total=share, hint=hint))
        return self._over_steps("Time of a step", "ms", series, kind="stack", height=300)

    def _speed(self) -> Chart:
        series = []
        for name, tokens, time, colour, style in (
            ("measured", "tokens", "time_ns", BLUE, "line"),
            ("expected by the governor", "expected_tokens", "expected_ns", RED, "dash"),
        ):
            mean = self._share(tokens, time)
            if mean is not None:
                values = self._smooth(tokens, time, 1e9)
                series.append(_series(name, colour, values, style=style, total=number(mean * 1e9)))
        return self._over_steps("Throughput", "tokens/s", series)

    # Speculation

    def _draft(self) -> Chart:
        series = [_series("asked for", BLUE, self._per_step("draft_length").tolist(), style="step")]
        for name, colour in (("drafted", ORANGE), ("accepted", GREEN)):
            series.append(_series(name, colour, self._smooth(name, "steps")))
        for each, column in zip(series, ("draft_length", "drafted", "accepted"), strict=True):
            each["total"] = number(self._share(column, "steps"))
        return self._over_steps("Draft length", "tokens", series)

    def _roofline(self) -> Chart:
        lengths, governor = self._content["lengths"], self._content["governor"] or {}
        steps, tokens, time = (np.array(lengths[name], float) for name in ("steps", "tokens", "time_ns"))
        series, marks, n = [], [], len(steps)
        curve = governor.get("curve")
        if curve is not None and curve["theta"]:
            theta = np.array(curve["theta"], float)
            roof = rate(np.array(curve["tokens"], float), np.array(curve["compute_s"], float))
            series.append(_series("roof: no misses", GREY, roof, style="dash"))
            series.append(_series("expected, as of the end", BLUE, theta.tolist()))
            n, best = max(n, len(theta)), int(theta.argmax())
            marks.append({"x": best, "label": f"best: {best}"})
        share = (steps / max(1.0, float(steps.max(initial=0)))).tolist()
        measured = rate(tokens * 1e9, time)
        series.append(_series("measured, larger for more steps", RED, measured, style="dots", size=share))
        axis = {"x": list(range(n)), "x_label": "draft length", "x_range": [-0.4, n - 0.6], "group": "length"}
        title = "The governor's roofline" if curve is not None else "Throughput by draft length"
        return {"kind": "lines", **axis, "title": title, "unit": "tokens/s", "series": series, "marks": marks}

    # Copies

    def _moved(self) -> Chart:
        series = []
        for name, column, colour in (
            ("experts, up", "upload_bytes", BLUE),
            ("ids and inputs, down", "download_bytes", ORANGE),
            ("CPU rows, back up", "join_bytes", RED),
        ):
            total = size(float(self._c[column].sum()))
            series.append(_series(name, colour, self._per_step(column).tolist(), total=total))
        return self._over_steps("Bytes moved, per step", "bytes", series, kind="stack")

    def _swaps(self) -> Chart:
        series = []
        for name, column, colour in (
            ("uploads", "uploads", BLUE),
            ("evictions", "evictions", RED),
            ("uploads never used", "uploads_wasted", GREY),
        ):
            total = number(float(self._c[column].sum()))
            series.append(_series(name, colour, self._smooth(column, "steps"), total=total))
        return self._over_steps("Experts swapped, per step", "", series)


def _series(name: str, colour: int, values: Sequence[Any], *, style: str = "line", **more: Any) -> Chart:
    kept = [None if value is None else float(f"{value:.5g}") for value in values]
    return {"name": name, "colour": colour, "style": style, "values": kept, **more}


def _middles(steps: Float64Array) -> list[float]:
    """Return the middle of each row on the axis of steps; `steps` has the number of steps per row."""
    middles: list[float] = (np.cumsum(steps) - steps / 2 + 0.5).tolist()
    return middles
