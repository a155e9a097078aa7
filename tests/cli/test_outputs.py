"""No program writes over what it reads, and each says what it could not write or read."""

from __future__ import annotations

import shutil

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


@pytest.fixture
def program(programs, tmp_path):
    """Return `program("run", "-p", "x", stdout=file)`, which runs in the folder of `files`."""

    def run(name, *arguments, stdin=None, stdout=None):
        words = [name, *map(str, arguments)]
        done = programs.run("spac", words, tmp_path, environment(), stdin, stdout)
        return done.returncode, done.stderr.decode()

    return run


TAKEN = {
    "target.gguf": "the target", "t.jinja": "the chat template", "state": "the file of --state",
    "in": "stdin",
}  # fmt: skip
PAIR = ("-m", "target.gguf", "-md", "draft.gguf")


def test_a_conversation_is_not_saved_over_what_the_chat_uses(program, tmp_path, files):
    (tmp_path / "in").write_text("".join(f"/save {name}\n" for name in (*TAKEN, "chat.json")))
    options = ("-q", "--chat-template-file", "t.jinja", "--state", "state", "--load", "chat.json")
    with (tmp_path / "in").open() as stdin:
        code, err = program("chat", *PAIR, *options, stdin=stdin)
    assert code == 2
    said = [line.split(" is ")[1] for line in err.splitlines()]
    assert said == [f"{other}: name another file" for other in TAKEN.values()]
    assert (tmp_path / "chat.json").read_bytes() != files.pop("chat.json")
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_the_file_that_stdout_goes_to(program, tmp_path, files):
    run = ("run", *PAIR, "-p", "x", *GREEDY, "--threads", 1, "--stats-file")
    with (tmp_path / "out").open("w") as out:
        code, err = program(*run, "out", stdout=out)
        assert (code, "out is stdout" in err) == (2, True)
        assert program(*run, "/dev/stdout", stdout=out)[0] == 0
    text, figures = (tmp_path / "out").read_text().rstrip("\n").rsplit("\n", 1)
    assert text
    assert figures.startswith('{"target"')


def test_a_full_disk_names_stdout(program, files):
    with open("/dev/full", "w") as full:
        for name, *words in (("run", *PAIR, "-p", "x", *GREEDY), ("doctor",)):
            said = f"spac {name}: error: stdout: cannot be written: No space left on device\n"
            assert program(name, *words, stdout=full) == (1, said)


def test_prompts_that_are_no_utf8(program, tmp_path, files, spac_run):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    foreign, said = b"caf\xe9".decode("utf-8", "surrogateescape"), "byte 3 is not UTF-8"
    assert spac_run("-f", "latin1.txt", *GREEDY).error.startswith(f"spac run: error: latin1.txt: {said}")
    assert f"--prompt: {said}" in spac_run("-p", foreign, *GREEDY).error
    for name, *arguments in (("bench", "-f", "latin1.txt"), ("bench", "-p", foreign), ("run", "-f", "-")):
        with (tmp_path / "latin1.txt").open() as stdin:
            code, err = program(name, *PAIR, *arguments, stdin=stdin)
        assert (code, said in err) == (2, True)
    assert spac_run(*PAIR, "-e", "-p", r"caf\xe9", *GREEDY).code == 0  # a byte that is meant


def test_a_message_that_is_no_utf8(program, tmp_path, files):
    (tmp_path / "in").write_bytes(b"one\ncaf\xe9 \\\nagain\nthree\n/save said\n")
    with (tmp_path / "in").open() as stdin:
        code, err = program("chat", *PAIR, "-n", 2, "-q", "--threads", 1, "--temp", 0, stdin=stdin)
    assert code == 2
    assert err.startswith("spac chat: error: the message: byte 3 is not UTF-8")
    said = (tmp_path / "said").read_text()
    assert [word in said for word in ("one", "three", "again")] == [True, True, False]


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
