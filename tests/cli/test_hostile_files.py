"""Whatever file an option names, the program ends: pipes nobody writes, endless devices, JSON without end."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile

import pytest

from spac import env
from spac.chat.conversation import Conversation
from spac.cli import config_file
from spac.cli.completion import parser_of
from spac.cli.program import _INPUTS, _OUTPUTS
from spac.config.grammar import of_file, of_schema_file
from spac.errors import InputError
from spac.machine import files
from spac.report.figures import read
from spac.scheduler.demand import Demand
from tests.cli.conftest import ONE_THREAD, environment
from tests.cli.options_page import PROGRAMS
from tools.models import write_projector

DEEP = "[" * 200_000
OTHERS = {"hf_file", "slot_save_path"}
"""Options whose FILE is a name in a repository, and whose folder the server's tests try."""


def path_options() -> list[tuple[str, str, str]]:
    """Return the program, the name and the flag of each option that names a file."""
    found = []
    for program in PROGRAMS:
        for action in parser_of(program)._actions:
            words = str(action.metavar)
            if words.startswith(("FILE", "DIR", "RECORDING")) and action.dest not in OTHERS:
                found.append((program, action.dest, (action.option_strings or [""])[0]))
    return found


def test_every_file_is_an_input_or_an_output():
    """Then `check_outputs` sees it, and the tests below try it."""
    assert {name for _, name, _ in path_options()} == {*_INPUTS, *_OUTPUTS}


# `spac exec` passes its files on to the program, where `spac.Llama` reads them.
READ = [
    (program, flag)
    for program, name, flag in path_options()
    if (name in _INPUTS or name == "state") and program != "exec"
]


PATHS = ("pipe", "/dev/full")


@pytest.mark.parametrize(("program", "flag", "path"), [(*each, PATHS[i % 2]) for i, each in enumerate(READ)])
def test_files_that_are_read(programs, target, tmp_path, program, flag, path):
    os.mkfifo(tmp_path / "pipe")
    words = [program, *([flag] if flag else []), path]
    known = parser_of(program)._option_string_actions
    if "-m" in known and flag != "--target":
        words += ["-m", str(target), *(("--device", "cpu", *ONE_THREAD) if "--device" in known else ())]
    if flag == "--image":
        words += ["--mmproj", str(write_projector(tmp_path / "projector.gguf", "gemma3", 64))]
    if program == "run" and flag not in ("--file", "--prompt"):
        words += ["--prompt", "x", "-n", "1"]
    words += {"serve": ["--port", "0"], "doctor": ["--measure"] if flag == "--draft" else []}.get(program, [])
    done = programs.run("spac", words, tmp_path, environment(), b"")
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode in ((1, 2) if program == "doctor" else (2,)), said
    assert path in said
    assert not [words for words in ("Traceback", "internal fault") if words in said]


def test_an_output_pipe_needs_a_reader(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: cannot be written"):
        files.write_atomically(tmp_path / "pipe", b"data")


@pytest.mark.parametrize("name", [62 * "\U0001f600", 255 * "x"])
def test_the_longest_names_that_a_file_can_have(tmp_path, name):
    path = tmp_path / name
    files.check_outputs({"--record": path})
    files.write_atomically(path, b"data")
    assert path.read_bytes() == b"data"
    with pytest.raises(InputError, match="too long"):
        files.check_outputs({"--record": tmp_path / (name + 8 * "x")})


def test_a_file_without_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_READ", 3 << 20)
    (tmp_path / "large").write_bytes(bytes(4 << 20))
    for reader in (of_file, of_schema_file):
        with pytest.raises(InputError, match="has more than 3 MB"):
            reader(tmp_path / "large")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("report.json", bytes(4 << 20))
    with pytest.raises(InputError, match="not a recording"):
        read(str(tmp_path / "bomb.npz"))


def test_deep_json(tmp_path, monkeypatch):
    """Every reader of JSON says one line, or takes a cache's file for none."""
    path = tmp_path / "deep"
    path.write_text(DEEP)
    with pytest.raises(InputError, match="cannot be read"):
        Conversation.load(path)
    with pytest.raises(InputError, match="not valid JSON"):
        of_schema_file(path)
    monkeypatch.setenv(env.CONFIG_HOME.name, str(tmp_path))
    (tmp_path / "spac").mkdir()
    env.config_file().write_text(f"a = {DEEP}")
    with pytest.raises(InputError, match="not valid TOML"):
        config_file.read()


def test_deep_variables_of_a_template(programs, target, tmp_path):
    words = ["chat", "-m", str(target), *ONE_THREAD, "--chat-template-kwargs", DEEP[:100_000]]
    done = programs.run("spac", words, tmp_path, environment(), b"")
    assert (done.returncode, b"--chat-template-kwargs: not valid JSON" in done.stderr) == (2, True)


def member(name: str, data: bytes, flags: int = 0, method: int = 0) -> bytes:
    """Return an archive of one member, whose entry in both of the archive's lists is changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, data)
    content = bytearray(out.getvalue())
    for mark, shift in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(mark) + shift
        content[at : at + 4] = struct.pack("<HH", flags, method)
    return bytes(content)


REPORT = json.dumps({"format": "spac-recording", "schema": 1}).encode()
ARCHIVES = {
    **{f"method {n}": {"method": n} for n in (1, 6, 8, 9, 12, 14, 93, 95, 97, 99, 65535)},
    **{f"flags {n}": {"flags": n} for n in (1, 0x20, 0x40, 0x2001)},
}


@pytest.mark.parametrize("changes", ARCHIVES.values(), ids=ARCHIVES)
def test_odd_archives(tmp_path, changes):
    path = tmp_path / "odd.npz"
    for content in (member("report.json", REPORT, **changes), member("report.json", DEEP.encode())):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a recording, or is damaged"):
            read(str(path))
    path.write_bytes(member("names.npy", REPORT, **changes))
    with pytest.raises(InputError, match="is not a recording of demand") as refused:
        Demand.load(path)
    assert "\n" not in str(refused.value)
