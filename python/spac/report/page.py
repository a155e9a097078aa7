"""Builds the page: one HTML file that contains its style, its scripts and its data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from spac.report import words
from spac.report.charts import Chart, Charts
from spac.report.figures import MATRICES, Recording, file_name
from spac.stats.advice import verdict

SCRIPTS = ("charts.js", "heat.js")

SIDE_BY_SIDE = 256
"""The most experts of a layer for which both maps fit beside each other with cells of two pixels."""
MAPS = """\
<fieldset><legend>Experts of a layer, from left to right:</legend>
<label><input type="radio" name="order" value="number" checked> by number</label>
<label><input type="radio" name="order" value="demand"> most wanted first</label></fieldset>
<div class="pair$columns"><figure id="heat-resident"></figure><figure id="heat-demand"></figure></div>
<p id="expert" aria-live="polite">Point at an expert, or use the arrow keys.</p>
"""


def page(recording: Recording) -> str:
    """Return the page as text; all text from the recording is escaped."""
    charts = Charts(recording)
    drawn = charts.all()
    script = "\n".join(_file(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    name = escape(file_name(recording.stats.get("target")) or "a run")
    return Template(_file("page.html")).substitute(
        title=f"{name} – spac report",
        heading=name,
        script_hash=f"sha256-{digest}",
        style=colours() + _file("page.css"),
        setting=words.settings(recording),
        verdict=escape(verdict(recording.stats)),
        cards=words.cards(recording),
        sections="\n".join(_sections(recording, charts, drawn)),
        version=escape(recording.content["version"]),
        data=_embedded({"charts": drawn, "experts": _experts(recording)}),
        script=script,
    )


def colours() -> str:
    """Return the style sheet of the colours, light and dark, which the server's page has too."""
    return _file("colours.css")


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _embedded(data: Any) -> str:
    """Return JSON that no HTML parser takes for markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _experts(recording: Recording) -> Chart | None:
    experts = recording.content["experts"]
    if experts is None:
        return None
    counts, names = [layer["n_expert"] for layer in experts["layers"]], experts["devices"]
    return {
        "n_layer": len(counts),
        "n_expert": experts["n_expert"],
        "counts": counts,
        "devices": [names[layer["device"]] for layer in experts["layers"]] if len(names) > 1 else [],
        "looks": experts["looks"],
        "summary": f"{len(counts)} layers of up to {experts['n_expert']} experts",
        **{name: experts[name] for name in MATRICES},
    }


def _sections(recording: Recording, charts: Charts, drawn: dict[str, Chart]) -> Iterable[str]:
    if not drawn:
        yield '<p class="lead">No step was recorded: the run ended before its first token.</p>'
    elif recording.content["experts"] is None:
        yield f'<p class="lead">{words.NO_EXPERTS}</p>'
    else:
        title = "Where the experts are, and where they are wanted"
        columns = " of1" if recording.content["experts"]["n_expert"] > SIDE_BY_SIDE else ""
        maps = Template(MAPS).substitute(columns=columns)
        yield _section("experts", title, words.of_hits(recording), maps)
        hits = _figures(drawn, "hits", "threshold")
        yield _section("hits", "Hits over time", words.of_thresholds(recording), hits)
    if drawn:
        time = _figures(drawn, "time") + words.time_table(charts)
        yield _section("time", "Where the time goes", words.of_time(charts), time)
        speculation = _figures(drawn, "draft", "speed", "roofline")
        yield _section("speculation", "Speculation", words.of_speculation(recording), speculation)
        yield _section("memory", "Copies", "", _figures(drawn, "swaps", "moved"))
        layers = _figures(drawn, "layer_hits", "layer_times")
        layers += _details("As a table", words.layer_table(recording))
        yield _section("layers", "Layer by layer", "", layers)
    figures = _details("The run's statistics, as --stats json has them", words.statistics_table(recording))
    yield _section("figures", "All figures", "", figures)


def _section(name: str, title: str, lead: str, body: str) -> str:
    if not body:
        return ""
    intro = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{intro}{body}</section>'


def _figures(drawn: dict[str, Chart], *names: str) -> str:
    """Return places for the charts that exist, side by side if the page is wide enough."""
    there = [name for name in names if name in drawn]
    places = "".join(f'<figure id="chart-{name}"></figure>' for name in there)
    return f'<div class="pair of{len(there)}">{places}</div>' if there else ""


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""
