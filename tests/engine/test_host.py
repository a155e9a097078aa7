"""What the machine lacks is said in one line."""

from __future__ import annotations

from spac import _core
from spac.host import missing_features, physical_cores, repacking_pays


def test_a_cpu_without_avx2_is_told_so():
    old = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | LLAMAFILE = 1 |"
    lines = missing_features(old, "x86_64")
    assert len(lines) == 1
    assert "AVX2" in lines[0]
    assert missing_features(old + " AVX2 = 1 |", "x86_64") == []
    assert missing_features("CPU : NEON = 1 |", "aarch64") == []


def test_there_is_a_core():
    assert physical_cores() >= 1


def test_when_repacking_pays(monkeypatch):
    monkeypatch.setattr(_core, "trusted_cpu_kernels", lambda: ["q4_K"])
    monkeypatch.setattr(_core, "system_info", lambda: "CPU : AVX2 = 1 |")
    assert not repacking_pays()
    monkeypatch.setattr(_core, "system_info", lambda: "CPU : AVX2 = 1 | AMX_INT8 = 1 |")
    assert repacking_pays()
    monkeypatch.setattr(_core, "system_info", lambda: "CPU : NEON = 1 |")
    monkeypatch.setattr(_core, "trusted_cpu_kernels", list)
    assert repacking_pays()
