"""No program writes over what it reads, and each says what it could not write or read."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import environment

GREEDY = ("--temp", 0, "-n", 4, "--device", "simulated", "-q", "--stats", "none")


@pytest.fixture
def files(tmp_path, target, draft):
    """Put all that programs read into the folder that they run in, and return it by name."""
    shutil.copy(target, tmp_path / "target.gguf")
    shutil.copy(draft, tmp_path / "draft.gguf")
    (tmp_path / "prompt.txt").write_text("def f(")
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "chat.json").write_text('{"messages": []}')
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def program(cwd, name, *arguments, **streams):
    command = [sys.executable, "-m", "spac", name, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **streams}
    return subprocess.run(
        command, cwd=cwd, stderr=subprocess.PIPE, text=True, timeout=60, env=environment(), **streams
    )


PAIR = ("-m", "target.gguf", "-md", "draft.gguf")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("report", "chat.json", "--timeline", "target.gguf"), "--timeline: target.gguf is a model"),
        (("run", *PAIR, "-p", "x", "--state", "draft.gguf"), "--state: draft.gguf is the draft"),
        (("run", *PAIR, "-p", "x", "--record", "./target.gguf"), "--record: target.gguf is the target"),
        (("run", *PAIR, "-f", "prompt.txt", "--stats-file", "prompt.txt"), "is the prompt"),
        (("run", *PAIR, "-p", "x", "--record", "a", "--stats-file", "a"), "a is the file of --record"),
        (("run", *PAIR, "-p", "x", "--grammar-file", "t.jinja", "--record", "t.jinja"), "is the grammar"),
        (("run", *PAIR, "-p", "x", "-jf", "chat.json", "--record", "chat.json"), "is the schema"),
        (("run", *PAIR, "-p", "x", "--lora", "a,t.jinja", "--stats-file", "t.jinja"), "is an adapter"),
        (("bench", *PAIR, "-f", "prompt.txt", "--json", "prompt.txt"), "--json: prompt.txt is the prompt"),
        (("bench", *PAIR, "--json", "draft.gguf"), "--json: draft.gguf is the draft"),
        (("chat", *PAIR, "--load", "chat.json", "--state", "chat.json"), "is the conversation"),
        (("serve", *PAIR, "--chat-template-file", "t.jinja", "--record", "t.jinja"), "the chat template"),
        (("report", "chat.json", "-o", "chat.json"), "--output: chat.json is the recording"),
        (("report", "chat.json", "-o", "target.gguf"), "--output: target.gguf is a model"),
    ],
)
def test_outputs_that_are_read_too(tmp_path, files, arguments, fault):
    done = program(tmp_path, *arguments)
    assert done.returncode == 2
    assert fault in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_conversation_is_not_saved_over_what_the_chat_uses(tmp_path, files):
    (tmp_path / "in").write_text("/save target.gguf\n/save t.jinja\n/save state\n/save in\n/save chat.json\n")
    options = ("-q", "--chat-template-file", "t.jinja", "--state", "state", "--load", "chat.json")
    with (tmp_path / "in").open() as stdin:
        done = program(tmp_path, "chat", *PAIR, *options, stdin=stdin)
    assert done.returncode == 2
    others = ("the target", "the chat template", "the file of --state", "stdin")
    assert [line.split(" is ")[1] for line in done.stderr.splitlines()] == [
        f"{other}: name another file" for other in others
    ]
    assert (tmp_path / "chat.json").read_bytes() != files.pop("chat.json")
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_the_file_that_stdout_goes_to(tmp_path, files):
    run = ("run", *PAIR, "-p", "x", *GREEDY, "--threads", 1, "--stats-file")
    with (tmp_path / "out").open("w") as out:
        done = program(tmp_path, *run, "out", stdout=out)
        assert (done.returncode, "out is stdout" in done.stderr) == (2, True)
        assert program(tmp_path, *run, "/dev/stdout", stdout=out).returncode == 0
    text, figures = (tmp_path / "out").read_text().rstrip("\n").rsplit("\n", 1)
    assert text
    assert figures.startswith('{"target"')


def test_a_full_disk_names_stdout(tmp_path, files):
    with open("/dev/full", "w") as full:
        for arguments in (("run", *PAIR, "-p", "x", *GREEDY), ("doctor",)):
            done = program(tmp_path, *arguments, stdout=full)
            assert done.returncode == 1
            assert done.stderr == (
                f"spac {arguments[0]}: error: stdout: cannot be written: No space left on device\n"
            )


def test_prompts_that_are_no_utf8(tmp_path, files, spac_run):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    foreign = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert spac_run("-f", "latin1.txt", *GREEDY).error.startswith(
        "spac run: error: latin1.txt: byte 3 is not UTF-8"
    )
    assert "--prompt: byte 3 is not UTF-8" in spac_run("-p", foreign, *GREEDY).error
    for name, *arguments in (("bench", "-f", "latin1.txt"), ("bench", "-p", foreign), ("run", "-f", "-")):
        with (tmp_path / "latin1.txt").open() as stdin:
            done = program(tmp_path, name, *PAIR, *arguments, stdin=stdin)
        assert done.returncode == 2
        assert "byte 3 is not UTF-8" in done.stderr
    assert spac_run(*PAIR, "-e", "-p", r"caf\xe9", *GREEDY).code == 0  # a byte that is meant


def test_a_message_that_is_no_utf8(tmp_path, files):
    (tmp_path / "in").write_bytes(b"one\ncaf\xe9 \\\nagain\nthree\n/save said\n")
    with (tmp_path / "in").open() as stdin:
        done = program(tmp_path, "chat", *PAIR, "-n", 2, "-q", "--threads", 1, "--temp", 0, stdin=stdin)
    assert done.returncode == 2
    assert done.stderr.startswith("spac chat: error: the message: byte 3 is not UTF-8")
    said = (tmp_path / "said").read_text()
    assert "one" in said
    assert "three" in said
    assert "again" not in said


def test_a_full_context_is_said(spac_run, files):
    run = (*PAIR, "-p", "def f(", "--temp", 0, "-c", 256, "--ignore-eos", "--stats", "none")
    said = "spac: the text ends here: the context of 256 tokens is full"
    assert said in spac_run(*run, "-n", 1000).err.splitlines()
    assert "the text ends" not in spac_run(*run, "-n", 4).err


def test_options_of_drafts_without_a_draft(spac_run, files):
    run = ("-m", "target.gguf", "-p", "x", "-n", 2, "--device", "cpu", "--stats", "none")
    said = "not used, for nothing drafts"
    for options in (("--draft-length", 4), ("--draft-max", 4), ("--latency-budget", 50)):
        assert f"spac: {options[0]}: {said}" in spac_run(*run, *options).err
    assert said not in spac_run(*run, "--draft-length", 0).err
    assert said not in spac_run(*run, "--draft-length", 4, "--draft-type", "ngram-simple").err
