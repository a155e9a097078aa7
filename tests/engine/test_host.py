"""What the machine lacks is said in one line."""

from __future__ import annotations

from spac.host import missing_features, physical_cores


def test_a_cpu_without_avx2_is_told_so():
    old = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | LLAMAFILE = 1 |"
    lines = missing_features(old, "x86_64")
    assert len(lines) == 1
    assert "AVX2" in lines[0]
    assert missing_features(old + " AVX2 = 1 |", "x86_64") == []
    assert missing_features("CPU : NEON = 1 |", "aarch64") == []


def test_there_is_a_core():
    assert physical_cores() >= 1
