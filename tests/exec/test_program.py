"""Options end where the program begins. They reach the program as `spac.enable()` takes them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spac.config import EngineConfig
from spac.exec import START, main, make_parser
from spac.llama_cpp_python.names import OPTIONS
from tests.llama_cpp_python.conftest import DRAFT


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Replace the start of the program. Return the list that gets its command, and its environment."""
    calls: list[Any] = []

    def execve(_path: str, command: list[str], environment: dict[str, str]) -> None:
        calls.extend([command[1:], environment])
        sys.exit(0)

    monkeypatch.setattr("spac.exec.os.execve", execve)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return calls


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return str(line)


@pytest.mark.parametrize(("words", "own", "program"), [
    (["app.py", "--slots", "3"], [], ["app.py", "--slots", "3"]),
    (["--slots", "3", "app.py", "--", "-x"], ["--slots", "3"], ["app.py", "--", "-x"]),
    (["--slots=3", "--deterministic", "-m", "a"], ["--slots=3", "--deterministic"], ["-m", "a"]),
    (["--draft_max", "2", "--", "app.py"], ["--draft_max", "2"], ["app.py"]),
    (["-md", "d.gguf", "a"], ["-md", "d.gguf"], ["a"]), (["--slots"], ["--slots"], []), ([], [], []),
])  # fmt: skip
def test_options_end_where_the_program_begins(words, own, program):
    assert make_parser().split(words) == (own, program)


def test_options_as_enable_takes_them(started, tmp_path):
    (tmp_path / "app.py").touch()
    (tmp_path / "draft.gguf").symlink_to(DRAFT)
    words = [
        "--draft", "draft.gguf", "--draft-type", "draft-simple,ngram-simple", "--slots", "25%",
        "--vram-limit", "8GB", "--stream-batch", "auto", "--scheduler", "moe-spac:levels=8,balance=off",
        "--lora-scaled", "a.gguf:0.5", "--gpu-layers-draft", "all", "--deterministic", "--state", "learned",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        main([*words, "app.py", "--slots", "7"])
    command, environment = started
    assert command == ["app.py", "--slots", "7"]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(START)
    options = json.loads(environment["SPAC_EXEC"])
    assert options["slots"] == 0.25
    assert options["draft"] == str(tmp_path / "draft.gguf")
    assert options["lora"] == [[str(tmp_path / "a.gguf"), 0.5]]
    given = vars(make_parser().parse_args(words))
    absolute = {name: tmp_path / given[name] for name in ("draft", "state")}
    adapters = EngineConfig(target="any", lora=options["lora"]).lora
    expected = EngineConfig(target="any", **{**given, **absolute, "lora": adapters})
    found = EngineConfig(target="any", **options)
    assert {name: str(getattr(found, name)) for name in options} == {
        name: str(getattr(expected, name)) for name in options
    }


def test_every_option_is_one_of_enable():
    known = {action.dest for action in make_parser()._actions}
    assert known - {"help"} <= set(OPTIONS)


def script(path: Path, first: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(first + "\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "first", ["#!{}", "#! {} -s", "#!/usr/bin/env python3", "#!/bin/sh\n'''exec' {} \"$0\" \"$@\"\n' '''"]
)
def test_commands_of_this_environment(started, tmp_path, first):
    script(tmp_path / "bin" / "a-tool", first.format(sys.executable))
    (tmp_path / "a-tool").mkdir()  # A folder that is no program hides no command.
    with pytest.raises(SystemExit):
        main(["a-tool", "-v"])
    assert started[0] == [str(tmp_path / "bin" / "a-tool"), "-v"]


@pytest.mark.parametrize("python", ["python", "python3.12", sys.executable])
@pytest.mark.parametrize("rest", [["app.py", "-x"], ["-m", "app", "-x"], ["-c", "pass"], []])
def test_python_may_stand_before_the_program(started, tmp_path, python, rest):
    (tmp_path / "app.py").touch()
    with pytest.raises(SystemExit):
        main(["--slots", "3", python, *rest])
    assert started[0] == rest


@pytest.mark.parametrize(("words", "message"), [
    (["python", "gone.py"], "there is no program 'gone.py'"),
    (["python", "-m"], "the name of a module is missing"),
    (["/bin/sh", "app.py"], "/bin/sh is no Python script"),
    ([], "no program: name a file, a command, or -m MODULE"), (["--slots", "3"], "no program"),
    (["-m"], "-m: the name of a module is missing"), (["gone"], "there is no program 'gone'"),
    (["shell"], "is no Python script"), (["theirs"], "belongs to another Python, /opt/other/bin/python3.9"),
    (["--slot", "3", "app.py"], "unknown option '--slot'; did you mean --slots?"),
    (["--slots", "-3", "app.py"], "the count -3 is negative"),
    (["--draft", "gone.gguf", "app.py"], "gone.gguf: there is no such file"),
    (["--draft-length", "3", "--draft-max", "4", "app.py"], "--draft-length is every draft's"),
    (["--scheduler", "fifo", "app.py"], "unknown scheduler 'fifo'"),
])  # fmt: skip
def test_one_line_for_bad_input(started, tmp_path, capsys, words, message):
    script(tmp_path / "bin" / "shell", "#!/bin/sh")
    script(tmp_path / "bin" / "theirs", "#!/opt/other/bin/python3.9")
    (tmp_path / "app.py").touch()
    line = refusal(words, capsys)
    assert line.startswith("spac exec: error: ")
    assert message in line
    assert not started


def test_arguments_that_are_too_long(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").touch()
    assert "cannot be started: Argument list too long" in refusal(["app.py", "x" * 2**22], capsys)
