"""These tests cover the findings of `spac doctor`, and its advice about parts that are missing or broken."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest
from gguf import GGUFReader

from spac import _core, doctor
from spac.config.values import VramLimit
from spac.doctor import devices, examine, host, main
from spac.model.devices import DeviceRoom, fit
from spac.model.gguf.check import check_model
from tests.cli.conftest import environment
from tools.models import write_projector


@pytest.fixture(scope="module")
def findings():
    return {finding.name: finding for finding in examine()}


def test_it_finds_what_is_there(findings):
    assert not [finding for finding in findings.values() if finding.state == "fault"]
    assert _core.llama_cpp_python_version in findings["library"].found
    assert importlib.metadata.version("llama_cpp_python") in findings["llama-cpp-python"].found
    assert "cores" in findings["cpu"].found
    assert findings["cpu kernels"].found.split()[0] in (str(len(_core.trusted_cpu_kernels())), "none")
    assert "available" in findings["memory"].found
    assert "16 tokens" in findings["demo"].found
    real = [device for device in _core.devices() if not device.shares_host_cores]
    assert (findings["gpu"].state == "ok") == bool(real)


def test_what_is_off_says_why(findings):
    for finding in findings.values():
        assert bool(finding.why) == (finding.state != "ok"), finding
        assert "\n" not in finding.found + finding.why


def test_as_json_and_as_lines(capsys, monkeypatch, findings):
    monkeypatch.setattr(doctor, "examine", lambda *_: iter(findings.values()))
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"]
    assert [finding["name"] for finding in report["findings"]] == list(findings)
    assert report["verdict"].startswith("Models run here on ")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == [report["verdict"], ""]
    for finding in findings.values():
        assert finding.found in out
        assert finding.why in out


def test_what_would_fit(tiny_model):
    target = tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)
    room, fit = devices.vram(target, VramLimit.parse("2M"))
    assert "room for 1.9 MiB of the 2.0 MiB that --vram-limit allows" in room.found
    assert (fit.state, "% fit on simulated" in fit.found) == ("ok", True)
    room, fit = devices.vram(target, VramLimit.parse("100K"))
    assert fit.state == "off"
    assert "must be on simulated" in fit.why
    _, fit = devices.vram(tiny_model("qwen3"), None)
    assert (fit.state, "experts" in fit.found) == ("ok", False)


def test_what_would_fit_on_a_card_that_is_not_there(tiny_model, monkeypatch):
    monkeypatch.setenv("SPAC_DEVICE", "cpu")
    target = tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)
    room, fit = devices.vram(target, VramLimit.parse("300M"))
    assert room.found == "a GPU of 300.0 MiB: room for 44.0 MiB, a margin left free"
    assert (fit.state, "100% fit on a GPU of 300.0 MiB" in fit.found) == ("ok", True)
    [share] = devices.vram(target, VramLimit.parse("50%"))
    assert (share.state, share.why) == (
        "off",
        "50% of no GPU: give the size of one, such as --vram-limit 8G",
    )
    assert not list(devices.vram(target, None))


def test_the_demo_without_a_split_has_no_hit_rate(monkeypatch):
    monkeypatch.setenv("SPAC_DEVICE", "cpu")
    monkeypatch.setattr("spac.model.devices.physical_cores", lambda: 1)  # threads of a busy machine spin long
    [finding] = doctor._demo()
    assert (finding.state, "hit rate" in finding.found) == ("ok", False)


def test_whether_the_model_sees(tiny_model, tmp_path, capsys):
    target, mmproj = tiny_model("qwen3moe"), write_projector(tmp_path / "mmproj.gguf", "gemma3", 64)
    [finding] = devices.images(target, mmproj)
    assert (finding.state, "a projector gemma3" in finding.found) == ("ok", True)
    [finding] = devices.images(target, None)
    assert (finding.state, finding.why) == ("off", "--mmproj FILE names a model's projector")
    _, without = devices.vram(target, VramLimit.parse("2M"))
    _, beside = devices.vram(target, VramLimit.parse("2M"), mmproj)
    assert beside.found != without.found
    other = write_projector(tmp_path / "other.gguf", "gemma3", 96)
    assert main(["--target", str(target), "--mmproj", str(other)]) == 2
    assert "this projector is another model's" in capsys.readouterr().err


def test_tables_of_rows_stay_in_host_memory(tiny_model):
    """Embeddings per layer or n-gram are not counted on the device."""
    target = tiny_model("gemma4")
    info = check_model(target)
    [table] = [each for each in GGUFReader(target).tensors if each.name == "per_layer_token_embd.weight"]
    assert info.row_bytes == table.n_bytes > 0
    room = DeviceRoom((), 1 << 30, 1 << 30)
    assert fit(info, room).dense_bytes == info.file_size - info.expert_bytes - table.n_bytes


def test_whether_memory_holds_the_experts(tiny_model, monkeypatch):
    target = tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)
    _, experts = host.memory(target)
    assert (experts.name, experts.state, experts.why) == ("experts", "ok", "")
    with monkeypatch.context() as patch:  # llama.cpp maps the file for the CPU alone too
        patch.setattr("spac.machine.host_memory.sizes", lambda: (1 << 10, 1 << 10))
        patch.setattr("spac.model.devices.choose_device", lambda _: None)
        _, experts = host.memory(target)
        assert experts.state == "off"
    monkeypatch.setattr("spac.machine.host_memory.available", lambda: 1 << 20)
    monkeypatch.setattr("spac.model.paging._in_memory", lambda _: False)
    _, experts = host.memory(target)
    assert experts.state == "off"
    assert "those that are not there are read from the file" in experts.why
    assert len(list(host.memory(tiny_model("qwen3")))) == 1


def test_a_fault_is_exit_code_1(capsys, monkeypatch):
    def broken():
        raise ImportError("spac is not built: run `pip install .`")
        yield

    broken.__name__ = "_library"
    monkeypatch.setattr(host, "library", broken)
    monkeypatch.setattr(doctor, "_demo", lambda: iter(()))
    assert main([]) == 1
    out, err = capsys.readouterr()
    assert "! library" in out
    assert "spac is not built" in out
    assert "spac  " in out  # the other findings are still reported
    assert err == ""


def test_a_wrong_target_is_one_line(capsys, tmp_path):
    assert main(["--target", str(tmp_path / "nope.gguf")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("spac doctor: error: ")
    assert err.endswith("nope.gguf: there is no such file; check the path\n")


def test_the_file_of_options(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (path := tmp_path / "spac" / "config.toml").parent.mkdir()
    path.write_text("[all]\nctx = 8192\ntemp = 1\n[run]\n")
    [finding] = host.config()
    assert (finding.state, finding.found) == ("ok", f"{path}: [all] ctx, temp")
    path.write_text("[all")
    [finding] = host.config()
    assert finding.state == "fault"
    path.unlink()
    [finding] = host.config()
    assert finding.found == f"{path}: sets nothing"


def test_missing_extras_and_folders_are_no_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "EXTRAS", {"chat": ("no_such_module",), "server": ("json",)})
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = {finding.name: finding for check in (host.extras, host.folders) for finding in check()}
    assert found["extra-chat"].state == "off"
    assert "pip install 'spac[chat]'" in found["extra-chat"].why
    assert found["extra-server"].state == "ok"
    assert found["cache"].state == "off"
    assert str(nowhere) in found["cache"].why
    assert found["state"].state == "ok"


@pytest.mark.parametrize(
    ("built", "driver", "visible", "words"),
    [
        (False, "", None, "a CUDA build and a driver"),
        (True, "", None, "a driver"),
        (False, "CUDA 13.0", None, "a CUDA build"),
        (True, "CUDA 13.0", "", "CUDA_VISIBLE_DEVICES is ''"),
        (True, "CUDA 13.0", None, "no device"),
    ],
)
def test_why_there_is_no_gpu(monkeypatch, built, driver, visible, words):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert words in devices._why_no_gpu(built, driver)


def test_what_experts_lie_in():
    assert doctor._expert_memory("pinned mapping", False)[0] == "ok"
    assert doctor._expert_memory("staged", True)[0] == "ok"
    state, _, why = doctor._expert_memory("staged", False)
    assert state == "off"
    assert "pin" in why


def test_a_library_that_is_not_there(tmp_path):
    """The program reports a missing native library, and does not raise."""
    source = "import spac._library as l; l.library_path = lambda: l.Path('/no/libllama.so')\n"
    source += "from spac.doctor import main; raise SystemExit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 1
    assert "! library" in done.stdout
    assert "cannot be loaded" in done.stdout
    assert "Traceback" not in done.stderr
