"""Scripted chats write answers to stdout and everything else to stderr. They end with the right exit code."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys

import pytest

from spac.chat.app import App, main
from spac.cli.program import FAULT
from spac.errors import InputError, SpacError
from tests.chat.conftest import GREEDY, MARKS, says
from tests.chat.templates import CHANNELS, THINKING
from tests.cli.conftest import environment
from tools.models.tokenizer import n_tokens


def messages_of(file):
    return json.loads(file.read_text())["messages"]


def said_in(file):
    return [message["content"] for message in messages_of(file)]


def n_tokens_of(run):
    """Return the number of tokens in the context."""
    return int(re.search(r"context (\d+)/", run.err)[1])


def test_answers_go_to_stdout_and_talk_to_stderr(chat, tmp_path):
    file = tmp_path / "chat.json"
    lines = ("import os \\", "import sys", "/stats", "import re", "/stats full", f"/save {file}")
    done = chat(*lines, options=("-n", 6))
    assert done.code == 0
    assert [message["role"] for message in messages_of(file)] == ["user", "assistant"] * 2
    contents = said_in(file)
    assert contents[0] == "import os \nimport sys"
    assert done.out == "".join(content + "\n" for content in contents[1::2])
    for part in ("tokens/s", "acceptance", "to change", ", seed ", "saved 2"):
        assert part in done.err


def test_a_model_without_a_template_says_so(chat, tiny_model):
    done = chat("hello", options=("-m", tiny_model("qwen3moe", n_vocab=288), "-n", 2, "--draft-length", 0))
    assert done.code == 0
    assert "no chat template: a plain one is used" in done.err


def test_a_saved_chat_goes_on(chat, tmp_path):
    file = tmp_path / "chat.json"
    whole = chat("import os", "import re", options=("-n", 6, "-q"))
    chat("import os", f"/save {file}", options=("-n", 6))
    for resumed in (
        chat("import re", options=("-n", 6, "-q", "--load", file)),
        chat("/system forgotten", f"/load {file}", "import re", options=("-n", 6, "-q")),
    ):
        assert resumed.code == 0
        assert whole.out.splitlines()[-1] == resumed.out.splitlines()[-1]
    assert whole.err == ""


def test_the_system_prompt_is_seen(chat):
    plain, by_option, by_command = (
        n_tokens_of(chat(*lines, "x", options=("-n", 1, *more)))
        for lines, more in (
            ((), ()), ((), ("--system", "import numpy as np")), (("/system import numpy as np",), ()),
        )
    )  # fmt: skip
    assert by_option == by_command > plain


def test_what_a_reset_forgets(chat):
    """Programs have other names for it, for leaving, and for help."""
    done = chat("/?", "import os", "/clear", "import os", "/bye", "never", options=("-n", 6))
    half = len(done.out) // 2
    assert done.out[:half] == done.out[half:]
    assert "forgot 1 exchanges" in done.err
    assert "/regen" in done.err


def test_commands_that_cannot_be(chat):
    bad = {
        "/sav x": "did you mean /save?", "/save": "needs FILE", "/reset all": "takes nothing",
        "/stats": "no answer yet", "/stats all": "full or nothing",
        "/load /no/such.json": "/no/such.json: cannot be read",
        "/save /no/such/folder/x": "cannot be written", "/scheduler lrux": "lru, static",
        "/draft-length many": "whole number", "/draft-length 99": "0 to 8 here; start with --draft-max",
        "/reasoning maybe": "on or off", "/edit import re": "nothing was said yet",
        "/copy": "nothing was said yet",
        "/model other.gguf": "this chat keeps its model; start another: spac chat other.gguf",
    }  # fmt: skip
    done = chat(*bad, "/scheduler moe-spac", "/draft-length 0", "x", options=("-n", 4, "-q"))
    assert done.code == 2
    lines = done.err.splitlines()
    assert len(lines) == len(bad)
    for line, words in zip(lines, bad.values(), strict=True):
        assert line.startswith("spac chat: error: ")
        assert words in line
    assert done.out.count("\n") == 1  # the chat continued


@pytest.mark.parametrize("errors", [(InputError("x"), SpacError("y")), (SpacError("y"), InputError("x"))])
def test_a_fault_outranks_bad_input(errors):
    app = App(argparse.Namespace(quiet=True))
    for error in errors:
        app._refuse(error)
    assert app._code == FAULT


def test_help_lists_all_commands_and_exit_leaves(chat):
    done = chat("/help", "/exit", "never asked")
    assert (done.code, done.out) == (0, "")
    names = "help reset save load stats scheduler draft-length system reasoning exit"
    assert all(f"/{name}" in done.err for name in names.split())


def test_two_slashes_send_one(chat, templated, tmp_path):
    """The model's own template needs no note."""
    options = ("-m", templated(), "-n", 2, "--draft-length", 0)
    done = chat("//help", f"/save {tmp_path}/x", options=options)
    assert said_in(tmp_path / "x")[0] == "/help"
    assert done.code == 0
    assert "template" not in done.err


THOUGHT = "<think>\nIs it so?\n</think>\n\nYup"


def test_reasoning_goes_to_stderr(chat, templated, tmp_path):
    model = ("-m", templated(THINKING), "--draft-length", 0, "--grammar", says(THOUGHT))
    file = tmp_path / "chat.json"
    done = chat("hello", f"/save {file}", options=model)
    assert (done.code, done.out) == (0, "Yup\n")
    assert "Is it so?\n" in done.err
    assert "think>" not in done.err
    assert messages_of(file)[1] == {"role": "assistant", "content": "Yup", "reasoning_content": "Is it so?"}
    quiet = chat("hello", f"/load {file}", "and now", options=(*model, "-q"))
    assert (quiet.code, quiet.out, quiet.err) == (0, "Yup\nYup\n", "")


def test_channels_and_a_limit(chat, templated):
    said = "<|channel|>analysis<|message|>Is it so?<|end|><|start|>assistant<|channel|>final<|message|>Yup"
    model = ("-m", templated(CHANNELS), "--draft-length", 0, "--grammar", says(said))
    done = chat("hello", options=(*model, "--reasoning", "off"))
    assert done.out == "Yup\n"
    assert "Is it so?\n" in done.err
    assert "no way to turn reasoning off; --reasoning-budget 0" in done.err
    cut = chat("hello", options=(*model, "-n", 16))
    assert (cut.code, cut.out) == (0, "\n")
    assert "--max-tokens ended it in its reasoning: not kept" in cut.err


def test_options_of_reasoning(chat, templated):
    endless = 'root ::= <think> "a"{0,90} </think> "Hi"'
    bias = f"{n_tokens() + MARKS.index('</think>')}-50"
    model = ("-m", templated(THINKING), "--draft-length", 0, "--grammar", endless, "-l", bias, "-n", 60)
    limited = [chat("hello", options=(*model, "--reasoning-budget", n)) for n in (-1, 3, 0)]
    assert [run.out for run in limited] == ["\n", "Hi\n", "Hi\n"]
    assert [len(re.search("^a+$", run.err, re.MULTILINE)[0]) for run in limited[:2]] == [59, 3]
    assert "\na" not in limited[2].err
    thinking, *on, off = (
        n_tokens_of(chat(*lines, "x", options=(*model, "-n", 1, *more)))
        for lines, more in (
            ((), ()), ((), ("-rea", "auto")), (("/reasoning on",), ("--reasoning", "off")),
            ((), ("--reasoning", "off")),
        )
    )  # fmt: skip
    assert on == [thinking] * 2
    assert off > thinking, "the prompt has an empty block of reasoning"
    for lines, more in (
        ((), ("--chat-template-kwargs", '{"enable_thinking": false}')), (("/reasoning off",), ()),
    ):  # fmt: skip
        assert n_tokens_of(chat(*lines, "x", options=(*model, "-n", 1, *more))) == off


def test_a_template_on_the_command_line(chat, templated):
    options = ("-m", templated(), "--draft-length", 0, "-n", 1)
    options = (*options, "--chat-template", "{{ messages[0].content }}{{ more }}", "--chat-template-kwargs")
    less, more = (
        n_tokens_of(chat("hello", options=(*options, given))) for given in ("{}", '{"more": "1234567890"}')
    )
    assert more == less + 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--load no.json", "no.json"), ("--chat-template-file no.jinja", "no.jinja"),
        ("-m no.gguf", "no.gguf"), ("-n -2", "-1 to"), ("--markdown", "--markdown"),
        ("--reasoning maybe", "--reasoning"),
        ("--reasoning-budget -2", "-1 to"), ("--chat-template-kwargs [1]", "--chat-template-kwargs"),
        ("--chat-template-kwargs {", "--chat-template-kwargs"),
        ("-q --chat-template-kwargs '{\"enable_thinking\": \"no\"}'", "enable_thinking"),
        ("-q --chat-template '{% if %}'", "the chat template cannot be used: Unexpected token"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(chat, arguments, said):
    done = chat("x", options=tuple(shlex.split(arguments)))
    assert (done.code, done.out) == (2, "")
    assert said in done.error


@pytest.mark.parametrize(("module", "stdin"), [("prompt_toolkit", True), ("rich", False)])
def test_without_its_packages(capfd, monkeypatch, module, stdin):
    """The packages are needed on a terminal only, and one line asks for them."""
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: stdin, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["--no-history"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "pip install 'spac[chat]'" in err


def test_nobody_reads_the_answers(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "spac", "chat", *GREEDY, "-n", "8", "-q"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=tmp_path, env=environment(),
    )  # fmt: skip
    process.stdout.close()
    process.stdin.write(b"x\ny\n")
    process.stdin.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert err == b""


def test_undo_and_regen(chat, tmp_path):
    file = tmp_path / "chat.json"
    done = chat("import os", "/undo", "import re", f"/save {file}", options=("-n", 6))
    assert "forgot the last exchange: import os" in done.err
    assert said_in(file)[::2] == ["import re"]
    options = ("-n", 8, "--temp", 3, "--seed", 5)
    done = chat("import os", "import re", "/regen", f"/save {file}", options=options)
    said = said_in(file)
    assert said[::2] == ["import os", "import re"]
    shown = done.out.removesuffix("\n")
    assert shown.endswith(said[3])
    assert shown != "\n".join([said[1], said[3], said[3]])  # another seed


def test_another_text_in_place_of_the_last_message(chat, tmp_path):
    file = tmp_path / "chat.json"
    done = chat("import os", "import re", "/edit import sys", f"/save {file}", options=("-n", 6))
    assert done.code == 0
    contents = said_in(file)
    assert contents[::2] == ["import os", "import sys"]
    assert done.out.endswith(contents[3] + "\n")
    same = chat("import os", "import sys", options=("-n", 6, "-q"))
    assert same.out.endswith(contents[3] + "\n")


def test_which_model_answers(chat):
    done = chat("/model", options=("-n", 2, "--device", "cpu"))
    assert re.search(r"target\.gguf: .*, [\d.]+ \wi?B, \d+ layers\ndevice cpu: no split\n", done.err)
    done = chat("/model", options=("-n", 2, "--slots", 5, "--draft-length", 0))
    assert re.search(r"device simulated: 5 of \d+ experts in slots\ndraft none; context \d+ tokens", done.err)


@pytest.mark.parametrize("lines", [
    {"/edit " + "x y " * 3000: "the context holds", "/edit": "/edit needs the new text behind it here",
     "/copy": "/copy needs a terminal"},
    {"/system " + "x y " * 3000: "", "/regen": "the context holds"},
], ids=["edit", "regen"])  # fmt: skip
def test_an_answer_that_cannot_be_given_again_is_kept(chat, tmp_path, lines):
    file = tmp_path / "chat.json"
    before = {"/undo": "nothing was said yet", "/regen": "there was no answer yet"}
    done = chat(*before, "import os", *lines, f"/save {file}", options=("-n", 6))
    assert done.code == 2
    assert all(words in done.err for words in (*before.values(), *lines.values()))
    assert [each["role"] for each in messages_of(file)][-2:] == ["user", "assistant"]
    assert said_in(file)[-2] == "import os"


def test_a_text_file_in_a_message(chat, tmp_path):
    (tmp_path / "notes.txt").write_text("remember\nthis\n")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    file = tmp_path / "chat.json"
    reads = (f"/read {tmp_path}/{name}" for name in ("notes.txt", "noise", "none"))
    done = chat(*reads, "what?", "and?", f"/save {file}", options=("-n", 2))
    for words in ("notes.txt goes with the next message", "not UTF-8", "cannot be read"):
        assert words in done.err
    assert said_in(file)[::2] == ["notes.txt:\n```\nremember\nthis\n```\n\nwhat?", "and?"]


def test_setting_a_sampling_option(chat):
    done = chat(
        "/set temp", "/set temp 0", "/set top-k 3", "/set --seed 7", "x",
        "/set temp x", "/set top_k 1.5", "/set temp 900", "/set grammar x", "/set",
        options=("-n", 2, "--temp", 0.5),
    )  # fmt: skip
    for words in (
        "temp 0.5", "temp 0\n", "top_k 3", "seed 7", "needs a number, not 'x'", "whole number, not 1.5",
        "temp must be", "'grammar' is none of seed, temp,", "/set needs NAME VALUE",
    ):  # fmt: skip
        assert words in done.err


def test_a_long_chat_forgets_and_says_so(chat):
    done = chat(*(["import os and sys and time"] * 14), options=("-n", 16, "-c", 256))
    assert (done.code, done.out.count("\n") >= 14) == (0, True)
    assert "context full: the oldest" in done.err
