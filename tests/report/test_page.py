"""The page's file is complete, self-contained, escaped, and written as a whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spac.report import main
from spac.report.charts import Charts
from spac.report.figures import Recording, fixed_hit_rate, rows, smooth, time_parts
from spac.report.page import page
from spac.stats.advice import verdict
from spac.stats.words import number, percent
from tests.report.conftest import spac


def page_of(content):
    return page(Recording(content))


def test_everything_is_inside(content):
    text = page_of(content)
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=(?!\"data:)", text)
    for shown in ("target.gguf", "draft.gguf", "moe-spac", "40 for 160 experts", "simulated"):
        assert shown in text
    assert content["stats"]["target"] not in text  # the folder is private
    assert text.index(verdict(content["stats"])) < text.index("<main>")


def test_the_tables_have_the_key_figures_without_any_script(content):
    text = re.sub(r"<script.*?</script>", "", page_of(content), flags=re.S)
    stats = content["stats"]
    shares = (percent(stats[name]) for name in ("hit_rate", "acceptance"))
    for shown in (number(stats["tokens_per_second"]), *shares):
        assert f">{shown} <small>" in text
    for part in ("Draft", "Host waits", "CPU experts", "Scheduler"):
        assert f'<th scope="row">{part}</th>' in text


def test_names_are_escaped(content):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;.gguf"
    content["stats"].update(target=evil, draft=f"/tmp/{evil}", scheduler=evil, device=evil)
    content["experts"]["layers"][0]["name"] = evil
    content["version"] = content["started"] = evil
    text = page_of(content)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_output_by_name_by_default_and_to_stdout(recorded, tmp_path):
    copy = tmp_path / "run.npz"
    copy.write_bytes(recorded.read_bytes())
    (tmp_path / "run.html").write_text("earlier")
    done = spac("report", "run.npz", cwd=tmp_path)
    assert (done.code, done.out) == (0, b"")
    assert "run.html" in done.err
    made = (tmp_path / "run.html").read_bytes()
    assert made.endswith(b"</html>\n")
    assert spac("report", "run.npz", "-o", "-", cwd=tmp_path).out == made
    piped = spac("report", "-", cwd=tmp_path, stdin=copy.read_bytes())
    assert (piped.out, piped.err) == (made, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.npz"]


def test_what_is_no_plain_file_stays_what_it_is(recorded, tmp_path):
    (tmp_path / "real.html").write_text("earlier")
    (tmp_path / "link.html").symlink_to("real.html")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        for name in ("link.html", "pipe"):
            assert main([str(recorded), "-q", "-o", str(tmp_path / name)]) == 0
        assert read.result(10).endswith(b"</html>\n")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "real.html").read_bytes().endswith(b"</html>\n")
    name = 250 * "x"
    assert main([str(recorded), "-q", "-o", str(tmp_path / name)]) == 0
    assert main([str(recorded), "-q", "-o", str(tmp_path / (9 * name))]) == 2


def test_a_reader_that_leaves(recorded):
    """A stdout without a buffer writes the beginning of a page, and reports no error for the rest."""
    code = "import sys, spac.report as r; r.page = lambda _: 'x' * 10**6; sys.exit(r.main(sys.argv[1:]))"
    for unbuffered, output in (("1", "-"), ("", "-"), ("", "/dev/stdout")):
        with subprocess.Popen(
            [sys.executable, "-c", code, recorded, "-o", output], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        ) as process:  # fmt: skip
            process.stdout.read(1)
            process.stdout.close()
            assert (process.stderr.read(), process.wait(60)) == (b"", 141)


@pytest.mark.parametrize("part", ["experts", "thresholds", "governor", "device", "started"])
def test_what_a_run_does_not_have_is_left_out(content, part):
    content[part] = None
    if part == "experts":
        content["thresholds"] = None
    text = page_of(content)
    assert ('id="heat-demand"' in text) == (part != "experts")
    assert ('id="chart-threshold"' in text) == (part not in ("experts", "thresholds"))
    for column in content["steps"]["columns"].values():
        column.clear()
    assert "No step was recorded" in page_of(content)


def test_maps_of_many_experts_lie_one_below_the_other(content, monkeypatch):
    side_by_side, below = ('"pair"><figure id="heat-resident"', '"pair of1"><figure id="heat-resident"')
    assert side_by_side in page_of(content)
    monkeypatch.setattr(sys.modules["spac.report.page"], "SIDE_BY_SIDE", content["experts"]["n_expert"] - 1)
    assert below in page_of(content)


def test_the_parts_of_the_time_are_all_of_it(content):
    columns = rows(Recording(content), 40)
    parts = time_parts(columns)
    drafting = columns["draft_ns"] / np.maximum(columns["time_ns"], 1)
    assert (parts[0].ns / np.maximum(columns["time_ns"], 1) <= drafting + 1e-9).all(), (
        "only drafts are drafting"
    )
    assert sum(part.ns for part in parts) == pytest.approx(columns["time_ns"], rel=1e-6)
    assert len(columns["steps"]) <= 40
    assert columns["steps"].sum() == content["stats"]["steps"]
    columns["verify_ns"] *= 3
    longer = time_parts(columns)
    assert sum(part.ns for part in longer) == pytest.approx(columns["time_ns"], rel=1e-6)
    assert longer[0].ns.sum() < parts[0].ns.sum()


def test_the_best_fixed_choice(content):
    recording = Recording(content)
    best = np.sort(recording.matrix("demand").ravel())[::-1][:40].sum() / recording.matrix("demand").sum()
    assert fixed_hit_rate(recording) == pytest.approx(best)
    content["experts"]["pool_slots"] = [0]
    assert fixed_hit_rate(Recording(content)) == 0


def test_charts_have_a_value_for_every_place(content):
    for name, chart in Charts(Recording(content)).all().items():
        for series in chart["series"]:
            if name != "roofline":
                assert len(series["values"]) == len(chart["x"]), (name, series["name"])
        assert chart["x"] == sorted(chart["x"])


def test_smooth():
    assert smooth(np.array([1.0, 2, 3, 4]), 1).tolist() == [1, 2, 3, 4]
    assert smooth(np.array([1.0, 2, 3, 4]), 2).tolist() == [1, 3, 5, 7]


def test_a_governor_that_is_not_yet_sure(content):
    curve = content["governor"]["curve"]
    curve["compute_s"][3], curve["theta"][4] = -1e-4, -5.0
    charts = Charts(Recording(content)).all()
    assert charts["roofline"]["series"][0]["values"][3] is None
