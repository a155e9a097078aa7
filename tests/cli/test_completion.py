"""`spac completion` prints a script that completes commands, options and files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spac.cli import COMMANDS, main
from spac.cli.completion import SHELLS


def completed(script, *words):
    """Return what bash completes of the last word."""
    asked = " ".join(f"'{word}'" for word in words)
    given = f"COMP_WORDS=({asked}) COMP_CWORD={len(words) - 1}"
    code = f'{script}\n{given}; _shtab_spac; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def bash():
    pytest.importorskip("shtab")
    done = subprocess.run(
        [sys.executable, "-m", "spac", "completion", "bash"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash_completes(bash, tmp_path):
    assert completed(bash, "spac", "") >= set(COMMANDS)
    assert completed(bash, "spac", "run", "--vram") == {"--vram-limit"}
    assert completed(bash, "spac", "chat", "--reasoning", "o") == {"on", "off"}
    (tmp_path / "model.gguf").touch()
    assert completed(bash, "spac", "run", "--target", f"{tmp_path}/mod") == {f"{tmp_path}/model.gguf"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*COMMANDS, "vram-limit"))


def test_without_shtab(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    said = "spac completion: error: completion needs shtab: run `pip install 'spac[completion]'`\n"
    assert capsys.readouterr().err == said
