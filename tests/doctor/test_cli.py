"""The `spac` command finds its commands, imports nothing before, and refuses wrong words in one line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from spac import __version__, cli
from spac.cli import COMMANDS, ELSEWHERE, main


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spac {__version__}\n"


def test_the_help_names_all_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert max(map(len, out.splitlines())) <= 80
    assert main([]) == 2
    assert capsys.readouterr() == ("", out)


def test_help_with_a_command_is_the_commands_help(capsys):
    for words in (["help", "report"], ["report", "--help"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        assert "RECORDING" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("serv", "did you mean 'serve'?"),
        ("zzz", "choose one of setup, run"),
        ("--target", "options follow the command"),
        ("run\nchat", "run chat"),
        ("", "usage"),
    ],
)
def test_what_is_no_command(capsys, name, said):
    assert main([name, "--target", "x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize("name", ELSEWHERE)
def test_words_of_other_programs_name_the_way_here(capsys, name):
    assert name not in COMMANDS
    assert main([name, "x"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    named = re.findall(r"`spac ([\w-]+)", err)
    assert set(named) <= set(COMMANDS)
    assert named or name in ("rm", "stop")


def test_help_on_a_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["help", "models"])
    assert end.value.code == 0
    assert "spac models" in capsys.readouterr().out
    assert main(["help", "serv"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


def test_a_command_that_is_not_installed(capsys, monkeypatch):
    monkeypatch.setitem(COMMANDS, "later", "comes later")
    assert main(["later"]) == 2
    assert capsys.readouterr().err == "spac: error: this installation has no command 'later'\n"


def test_a_command_gets_the_rest(capsys, monkeypatch):
    import spac.run

    monkeypatch.setattr(spac.run, "main", lambda arguments: len(arguments) + 40)
    assert main(["run", "--prompt", "run"]) == 42


@pytest.mark.parametrize("name", ["run", "chat", "serve", "doctor"])
def test_every_command_has_help_on_its_options(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"spac {name}" in capsys.readouterr().out


def test_nothing_is_loaded_before_it_is_needed():
    """Help and wrong options do not wait for the library or for packages."""
    heavy = ["spac._core", "llama_cpp", "fastapi", "rich", "prompt_toolkit"]
    code = (
        "import sys; from spac.cli import main\n"
        "for arguments in (['-h'], ['chat', '--temp', 'x'], ['serve', '--port', 'x'], ['doctor', '-x']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert end.code == 2\n"
        f"assert not [name for name in {heavy!r} if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_the_module_is_the_command(capfd):
    done = subprocess.run([sys.executable, "-m", "spac", "--version"], capture_output=True, text=True)
    assert done.stdout == f"spac {__version__}\n"
    assert cli.entry
