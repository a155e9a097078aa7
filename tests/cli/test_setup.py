"""`spac setup` offers models that fit this machine, downloads the chosen one, and starts the chat."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from spac import chat
from spac.config.values import VramLimit
from spac.doctor import devices, host
from spac.doctor.trial import Finding
from spac.errors import InputError
from spac.machine import host_memory
from spac.model import hub, known
from spac.model.devices import device_room
from spac.models import setup
from tests.cli.conftest import environment


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Make a machine of 64 GiB without a GPU and without downloads, and return a setter of its memory."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("SPAC_DEVICE", "cpu")
    monkeypatch.setattr(hub, "cached", lambda _name: None)
    monkeypatch.setattr(hub, "check_disk", lambda _repo, _missing: None)

    def has(gib):
        monkeypatch.setattr(host_memory, "available", lambda: int(gib * 2**30))

    has(64)
    return has


def offered(card):
    """Return the names of the models for a card of this size, "" for none, and the recommended one."""
    models, rows, best = setup.offers(device_room(VramLimit.parse(card) if card else None))
    assert [row.name.endswith(" (recommended)") for row in rows] == [i == best for i in range(len(rows))]
    return [model.name for model in models], models[best].name


@pytest.mark.parametrize(("gib", "card", "best"), [
    (28, "6G", "qwen3-30b-a3b"), (28, "12G", "qwen3.6-35b-a3b"), (64, "12G", "qwen3.6-35b-a3b"),
    (64, "16G", "gpt-oss-120b"), (96, "24G", "qwen3.8-flash-next"), (12, "8G", "gpt-oss-20b"),
    (28, "", "qwen3.6-35b-a3b"), (96, "", "qwen3.6-35b-a3b"), (14, "", "gpt-oss-20b"),
    (10, "", "deepseek-v2-lite"),
])  # fmt: skip
def test_the_recommended_model(machine, gib, card, best):
    machine(gib)
    names, recommended = offered(card)
    assert recommended == best
    assert best in names
    assert len(names) <= 3
    sizes = {model.name: model.expert_bytes if card else model.file_size for model in known.MODELS}
    assert all(sizes[name] <= gib * 2**30 for name in names)


def test_what_is_shown_is_what_the_documents_say():
    _, [_, row, _], _ = setup.offers(device_room(VramLimit.parse("8G")))
    assert f"{row.slots / (row.experts * row.expert_layers):.0%}" == "25%"


@pytest.mark.parametrize(("gib", "card", "said"), [
    (4, "", "the smallest model known here takes 9.7 GiB of memory, and 4.0 GiB are left: "),
    (64, "1G", "a GPU of 1.0 GiB has room for 768.0 MiB, too little for the models known here: "),
])  # fmt: skip
def test_nothing_fits(machine, gib, card, said):
    machine(gib)
    with pytest.raises(InputError, match=said):
        offered(card)


@pytest.fixture
def terminal(monkeypatch, tmp_path):
    """Return a function that answers the question, and the words that downloads and the chat get."""
    calls = []
    monkeypatch.setattr(hub, "fetch", lambda name, *_: calls.append(name) or tmp_path / "model.gguf")
    monkeypatch.setattr(chat, "main", lambda words: calls.append(words) or 0)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def answer(text, *words):
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert setup.main(list(words)) == 0
        return calls

    return answer


def test_enter_takes_the_recommended_one(terminal, tmp_path):
    name, words = terminal("\n", "--vram-limit", "7.5G")
    assert name == hub.Name.parse("qwen3.6-35b-a3b")
    assert words[:2] == ["--target", str(tmp_path / "model.gguf")]
    assert VramLimit.parse(words[3]) == VramLimit.parse("7.5G")


def test_a_number_and_what_is_none(terminal, capsys):
    name, words = terminal("7\nx\n1\n", "--quiet")
    assert (name, "--quiet" in words) == (hub.Name.parse("qwen3-coder-30b-a3b"), True)
    said = [f"spac setup: '{text}' is not a number from 1 to 3" for text in ("7", "x")]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize("text", ["q\n", ""])
def test_nobody_has_to_choose(terminal, text):
    assert terminal(text) == []


def test_without_a_terminal_the_offer_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "spac", "setup", "--vram-limit", "100G"],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    if done.returncode:  # a small machine
        assert "the smallest model known here takes" in done.stderr
    else:
        assert "(recommended)" in done.stdout
        assert "not measured" in done.stdout
        assert "`spac chat " in done.stdout.splitlines()[-1]


def test_a_downloaded_model_has_its_own_figures(monkeypatch, tiny_model):
    file = tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)
    here = hub.Name.parse("qwen3-coder-30b-a3b")
    monkeypatch.setattr(hub, "cached", lambda name: file if name == here else None)
    _, rows, _ = setup.offers(None)
    [row] = [row for row in rows if "downloaded" in row.name]
    assert (row.name, row.path, row.experts) == ("1  qwen3-coder-30b-a3b, downloaded", str(file), 12)


def test_a_full_disk_is_named(monkeypatch, capsys):
    def full(repo, missing):
        raise InputError(f"{repo}: {missing} are to be downloaded")

    monkeypatch.setattr(hub, "check_disk", full)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert setup.main([]) == 0
    assert "- ggml-org/gpt-oss-120b-GGUF: 63400000000 are to be downloaded\n" in capsys.readouterr().out


def test_what_is_lacking_is_named(monkeypatch):
    monkeypatch.setattr(host, "EXTRAS", {"hf": ("no_such_module",), "chat": ("json",), "completion": ("no",)})
    found = [Finding("cuda-build", "off", "no", "built without CUDA"), Finding("gpu", "off", "none", "needs")]
    monkeypatch.setattr(devices, "gpu", lambda: iter([*found, Finding("driver", "ok", "580")]))
    hf, build = setup.lacking()
    assert ("run `pip install 'spac[hf]'`" in hf, build) == (True, "built without CUDA")
    monkeypatch.setattr(devices, "gpu", lambda: iter([*found, Finding("driver", "off", "none", "no")]))
    assert list(setup.lacking()) == [hf]
