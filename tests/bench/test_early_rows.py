"""The benchmark of rows that are read early."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import early_rows
from spac import _core

KINDS = [kind for kind in ("q4_0", "q8_0") if kind in _core.trusted_cpu_kernels()]


@pytest.mark.skipif(not KINDS, reason="this build has no kernels for these types")
def test_a_page_has_a_line_for_every_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    options = ["--kinds", KINDS[0], "--threads", "2", "--experts", "2", "--repeats", "2", "--out", str(page)]
    assert early_rows.main(options) == 0
    lines = [line for line in page.read_text().splitlines() if line.startswith(f"| {KINDS[0]} |")]
    assert len(lines) == len(early_rows.WAITS)
    assert "1 wrong, 2 right" in capsys.readouterr().out


@pytest.mark.skipif(not KINDS, reason="this build has no kernels for these types")
def test_rows_are_read_while_there_is_time() -> None:
    lane = _core.Lane(2)
    with early_rows.layer_of(KINDS[0], 2) as layer:
        layer.use([3, 5])
        rows = layer.rows([3, 5])
        assert sum(size for _, size in rows) == 6 * layer.expert_bytes
        assert lane.run(rows, 0.0, layer.graph)[0] == 0
        read, seconds = lane.run(rows, 0.2, layer.graph)
        assert read == 6 * layer.expert_bytes
        assert seconds > 0


def test_bad_options_get_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert early_rows.main(["--experts", "99"]) == 2
    assert early_rows.main(["--kinds", "q9"]) == 2
    assert capsys.readouterr().err.count("error: ") == 2
