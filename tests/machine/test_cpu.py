"""The CPU's features, cores and quota are found, and one line notes each lack."""

from __future__ import annotations

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine import control_groups
from spac.machine.cpu import cpu_quota, default_threads, missing_features, physical_cores, threads_advice


def test_a_cpu_without_avx2_is_noted():
    old = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | LLAMAFILE = 1 |"
    lines = missing_features(old, "x86_64")
    assert len(lines) == 1
    assert "AVX2" in lines[0]
    assert missing_features(old + " AVX2 = 1 |", "x86_64") == []
    assert missing_features("CPU : NEON = 1 |", "aarch64") == []


def test_there_is_a_core():
    assert physical_cores() >= 1


V1 = "4:cpu,cpuacct:/box\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [("0::/\n", {}, None), ("0::/\n", {"cpu.max": "max 100000\n"}, None),
     ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5), ("0::/\n", {"cpu.max": "100 0"}, None),
     ("0::/\n", {"cpu.max": "what"}, None),
     # A unit of systemd, and a pod of Kubernetes: the limit stands at the group, or at one around it.
     ("0::/unit/app\n", {"unit/app/cpu.max": "150000 100000\n", "unit/cpu.max": "max 100000\n"}, 1.5),
     ("0::/unit/app\n", {"unit/app/cpu.max": "800000 100000\n", "unit/cpu.max": "300000 100000\n"}, 3.0),
     ("0::/unit/app\n", {"other/cpu.max": "100000 100000\n"}, None),
     (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
     (V1, {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
     (V1, {"cpu/box/cpu.cfs_quota_us": "200000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, 2.0)],
)  # fmt: skip
def test_a_group_may_have_a_quota(tmp_path, monkeypatch, own, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "OWN", tmp_path / "own")
    assert cpu_quota() == quota


def test_a_quota_limits_the_cores(monkeypatch):
    monkeypatch.setattr("spac.machine.cpu.n_cores", lambda _: 8)
    for limit, cores in ((None, 8), (2.5, 2), (0.5, 1), (100.0, 8)):
        monkeypatch.setattr("spac.machine.cpu.cpu_quota", lambda limit=limit: limit)
        assert physical_cores() == cores


@pytest.mark.parametrize(
    ("cores", "beside_gpu", "beside_simulated"),
    [(1, 1, 1), (2, 1, 1), (3, 2, 2), (4, 3, 3), (5, 3, 4), (8, 6, 7), (16, 14, 15), (128, 126, 127)],
)
def test_who_does_not_compute_has_cores_too(cores, beside_gpu, beside_simulated):
    assert default_threads(cores) == cores
    assert default_threads(cores, gpu=True) == beside_gpu
    assert default_threads(cores, shares_cores=True) == beside_simulated


def test_more_threads_than_cores_are_noted():
    assert threads_advice(8, 8, 6) is None
    assert threads_advice(16, 8, 6).startswith("16 threads on 8 cores: ")
    assert threads_advice(16, 8, 6).endswith("try --threads 6")
    assert threads_advice(2, 1, 1).startswith("2 threads on 1 core: ")


@pytest.mark.parametrize("device", ["simulated", "cpu"])
def test_a_number_of_threads_that_the_user_says_is_kept(tiny_model, device, monkeypatch):
    monkeypatch.setattr("spac.model.placement.physical_cores", lambda: 2)
    model = tiny_model("qwen3moe")
    for threads, used in ((0, 1 if device == "simulated" else 2), (2, 2), (3, 3)):
        with Engine(EngineConfig(target=model, device=device, ctx=64, threads=threads)) as engine:
            assert engine.setting(SamplingConfig()).threads == engine._pair.placement.prompt_threads == used
            noted = [note for note in engine.notes if "threads on" in note]
            assert len(noted) == (threads > 2)
