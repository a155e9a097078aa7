"""The page loads in a real browser without complaints. Every expert has a cell, and pointing shows its
data."""

from __future__ import annotations

import numpy as np
import pytest

from spac.report.figures import Recording

CELLS = """
(() => {
  const texts = [], lights = [], map = data.experts.view.maps[%d], canvas = map.canvas;
  const { left, above, w, h } = map.box, box = canvas.getBoundingClientRect();
  const ratio = canvas.width / box.width;
  for (let layer = 0; layer < data.experts.n_layer; layer += 1) {
    for (let column = 0; column < data.experts.n_expert; column += 1) {
      const x = left + (column + 0.5) * w, y = above + (layer + 0.5) * h;
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
      texts.push(document.getElementById("expert").textContent);
      const [r, g, b, a] = canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data;
      lights.push(a ? 0.2126 * r + 0.7152 * g + 0.0722 * b : -1);
    }
  }
  return { texts, lights };
})()
"""


def test_it_comes_up_clean_and_asks_for_nothing(show, content):
    browser = show(content)
    assert browser.complaints == []
    assert [url.split(":")[0] for url in browser.requests if not url.startswith("data:")] == ["file"]
    marks = "polyline, polygon, circle, rect.solid"
    for name in ("hits", "threshold", "time", "draft", "speed", "roofline", "swaps", "moved"):
        assert browser.value(f"document.querySelectorAll('#chart-{name} svg').length") == 1
        drawn = f"document.querySelector('#chart-{name} svg g').querySelectorAll('{marks}').length"
        assert browser.value(drawn) > 0
    legend = browser.value("document.querySelector('#chart-hits .legend').textContent")
    assert "activations, each step" in legend
    assert "slots: " in legend
    assert "τ" in browser.value("document.querySelector('#hits .lead').textContent")


def test_every_expert_has_its_cell_and_its_figures(show, content):
    demand, resident = (Recording(content).matrix(name) for name in ("demand", "resident"))
    looks = content["experts"]["looks"]
    for dark in (False, True):
        browser = show(content, dark=dark)
        for i, matrix in ((0, resident), (1, demand)):
            seen = browser.value(CELLS % i)
            assert len(seen["texts"]) == 5 * 32
            for layer in range(5):
                for expert in range(32):
                    text, n = seen["texts"][layer * 32 + expert], demand[layer, expert]
                    assert f"Layer {layer}, expert {expert}: " in text
                    assert f"wanted {n:,} time" in text
                    share = float(text.split("in a slot in ")[1].split("%")[0])
                    assert share == pytest.approx(100 * resident[layer, expert] / looks, abs=0.0501)
            lights, order = np.array(seen["lights"]), np.argsort(matrix.ravel(), kind="stable")
            step = np.diff(lights[order]) * (1 if dark else -1)
            assert (lights >= 0).all()
            assert (step >= -1).all(), "more is always further from the page's colour"
            assert np.ptp(lights) > 80


def test_the_most_wanted_come_first(show, content):
    browser = show(content)
    browser.value("document.querySelector('input[value=demand]').click()")
    seen = browser.value(CELLS % 1)
    demand = Recording(content).matrix("demand")
    for layer in range(5):
        row = seen["texts"][32 * layer : 32 * layer + 32]
        assert [f"(rank {i + 1} of 32)" in text for i, text in enumerate(row)] == [True] * 32
        assert f"expert {demand[layer].argmax()}: " in row[0]


def test_layers_with_fewer_experts_have_fewer_cells(show, content):
    content["experts"]["layers"][2]["n_expert"] = 20
    browser = show(content)
    assert browser.complaints == []
    seen = browser.value(CELLS % 0)
    for layer in range(5):
        row = slice(32 * layer, 32 * layer + 32)
        there = [text.startswith("Layer") for text in seen["texts"][row]]
        assert there == [light >= 0 for light in seen["lights"][row]]
        assert sum(there) == (20 if layer == 2 else 32)


def test_the_mouse_and_the_keys(show, content):
    browser = show(content)
    place = "document.querySelector('#heat-demand canvas')"
    box = browser.value(
        f"({place}.scrollIntoView({{block: 'center'}}), (({{left, top}}, m) => [left + m.left + 7.5 * m.w, "
        f"top + m.above + 1.5 * m.h])({place}.getBoundingClientRect(), data.experts.view.maps[1].box))"
    )
    browser.move(*box)
    assert browser.value("document.getElementById('expert').textContent").startswith("Layer 1, expert 7:")
    assert browser.value("[...document.querySelectorAll('.cursor')].map((c) => c.hidden)") == [False, False]
    browser.value(f"{place}.focus()")
    for key in ("ArrowRight", "ArrowDown"):
        browser.key(key)
    assert browser.value("document.getElementById('expert').textContent").startswith("Layer 2, expert 8:")
    browser.move(2, 2)
    assert not browser.value("document.getElementById('expert').textContent").startswith("Layer")


def test_charts_over_steps_show_one_place_together(show, content):
    browser = show(content)
    read = "[...document.querySelectorAll('#chart-{} .legend b')].map((b) => b.textContent)"
    before = browser.value(read.format("hits"))
    box = browser.value(
        "(() => { const s = document.querySelector('#chart-time svg'); s.scrollIntoView({block: 'center'}); "
        "const b = s.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.move(*box)
    where = browser.value(
        "[...document.querySelectorAll('.where')].map((w) => w.textContent).filter(Boolean)"
    )
    assert len(where) >= 6
    assert len(set(where)) == 1
    assert where[0].startswith("step ")
    at = float(browser.value("charts.find((chart) => chart.host.id === 'chart-hits').at"))
    expected = browser.value("data.charts.hits.series[1].values")[int(at)]
    assert float(browser.value(read.format("hits"))[1][:-1]) == pytest.approx(100 * expected, abs=0.0501)
    browser.move(2, 2)
    assert browser.value(read.format("hits")) == before
    browser.value("document.querySelector('#chart-hits svg').focus()")
    browser.key("ArrowRight")
    assert browser.value("document.querySelector('#chart-moved .where').textContent") == "step 1"


def test_it_fits_a_phone(show, content):
    browser = show(content, width=360, height=740)
    assert browser.complaints == []
    assert browser.value("document.documentElement.scrollWidth") <= 360
    assert browser.value("Math.min(...[...document.querySelectorAll('svg')].map((s) => s.clientWidth))") > 280


def test_pages_of_less(show, content):
    content["experts"] = content["thresholds"] = content["governor"] = content["device"] = None
    for column, values in content["steps"]["columns"].items():
        content["steps"]["columns"][column] = values[:1]
    browser = show(content)
    assert browser.complaints == []
    assert browser.value("document.querySelectorAll('svg').length") >= 2
