"""The chat runs in a real pseudo-terminal: editing, several lines, Ctrl-C, Ctrl-D, commands, Markdown."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import sys
import time

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from spac.chat.terminal import _keys
from tests.chat.conftest import GREEDY, says
from tests.chat.templates import THINKING
from tests.cli.conftest import environment

pexpect = pytest.importorskip("pexpect")

READY = "\x1b[?2004h"  # the line editor asks for pasted text in brackets
UP, LEFT, HOME, ALT_ENTER = "\x1b[A", "\x1b[D", "\x01", "\x1b\r"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"


class Terminal:
    """A chat with the demo pair on a terminal of 100 columns and 24 lines."""

    def __init__(self, folder, *options, **env):
        self.history = folder / "state" / "spac" / "chat-history"
        terminal = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": ""}
        env = environment(**{**terminal, "XDG_STATE_HOME": str(folder / "state"), **env})
        self.child = pexpect.spawn(
            sys.executable, ["-m", "spac", "chat", *GREEDY, *options],
            env=env, cwd=folder, dimensions=(24, 100), timeout=30, encoding="utf-8",
            ignore_sighup=True,
        )  # fmt: skip
        self.child.delaybeforesend = None
        self.folder = folder
        self.ready()

    def ready(self):
        """Wait for the prompt. Return the text that was shown before it, without colors and movements."""
        self.child.expect_exact(READY)
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])", "", self.child.before)

    def type(self, text):
        self.child.send(text + "\r")
        return self.ready()

    def interrupt(self):
        self.child.sendintr()
        return self.ready()

    def messages(self):
        """Return the messages so far, which /save writes."""
        assert "saved" in self.type("/save said.json")
        saved = json.loads((self.folder / "said.json").read_text())
        return [message["content"] for message in saved["messages"]]

    def leave(self):
        self.child.sendeof()
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def make(*options, **env):
        opened.append(Terminal(tmp_path, *options, **env))
        return opened[-1]

    yield make
    for each in opened:
        each.child.close(force=True)


def test_editing_and_history(terminal):
    chat = terminal("-n", "4")
    chat.type("imporx\x7ft oss\x7f")
    chat.type("b" + HOME + "a")
    chat.type(UP + UP + " again")
    chat.type("one" + ALT_ENTER + "two")
    chat.type("three\\\rfour")
    chat.type('"""\rfive\r\rsix\r"""')
    chat.type(PASTE + "seven\neight" + PASTED)
    assert chat.messages()[::2] == [
        "import os", "ab", "import os again", "one\ntwo", "three\nfour", "five\n\nsix", "seven\neight",
    ]  # fmt: skip
    assert chat.leave() == 0
    assert chat.history.stat().st_mode & 0o777 == 0o600
    again = terminal("-n", "4")
    again.type(UP + UP + UP)  # goes back over the command; the pasted lines are one entry
    assert again.messages()[0] in ('"""\nfive\n\nsix\n"""', "five\n\nsix", "seven\neight")


@pytest.mark.parametrize("options", [(), ("--no-markdown",)])
def test_ctrl_c_stops_the_answer_and_not_the_program(terminal, options):
    chat = terminal("-n", "1900", "--ignore-eos", "--no-history", *options)
    chat.child.send("import os\r")
    chat.child.expect("[.]")  # of the answer
    chat.child.send("typed")
    shown = chat.interrupt()
    assert "stopped" in shown
    assert "^C" not in shown
    assert "typed" not in shown.partition("stopped")[0]
    chat.interrupt()  # what was typed stands behind the prompt
    question, answer = chat.messages()
    assert question == "import os"
    assert answer
    chat.child.send("half typed")
    chat.interrupt()
    assert "draft length 0" in chat.type("/draft-length 0")
    assert len(chat.messages()) == 2
    assert chat.leave() == 0
    assert not chat.history.exists()


def test_three_times_ctrl_c_loses_nothing(terminal):
    chat = terminal("-n", "1900", "--ignore-eos")
    chat.child.send("import os\r")
    chat.child.expect("tokens/s")  # the figures below the growing answer
    for _ in range(3):
        chat.child.kill(signal.SIGINT)
    chat.ready()
    assert chat.child.isalive()
    while len(chat.messages()) != 2:  # a press that came late left an empty prompt
        pass
    assert chat.leave() == 0


def test_a_ctrl_c_that_comes_late_is_nothing():
    """prompt_toolkit's own binding raises where the line was left before."""
    faults: list[dict[str, object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, fault: faults.append(fault))
        with create_pipe_input() as typed:
            session = PromptSession(key_bindings=_keys(), input=typed, output=DummyOutput())
            press = session.app.key_processor.send_sigint
            with pytest.raises(KeyboardInterrupt):
                await session.prompt_async(
                    "> ", set_exception_handler=False,
                    pre_run=lambda: [loop.call_soon(press) for _ in range(3)],
                )  # fmt: skip
            press()

    asyncio.run(main())
    assert faults == []


def test_commands_and_completion(terminal):
    chat = terminal("-n", "4")
    assert "did you mean /help?" in chat.type("/hepl")
    assert "/draft-length N|auto" in chat.type("/help")
    chat.child.send("/sche\t")
    chat.child.expect_exact("duler")
    assert "scheduler moe-spac" in chat.type(" moe-spac")
    assert "system prompt: be brief" in chat.type("/system be brief")
    chat.type("x")
    assert "hit rate" in chat.type("/stats")
    assert "forgot 1" in chat.type("/reset")
    chat.child.send("/exit\r")
    chat.child.expect(pexpect.EOF)
    chat.child.close()
    assert chat.child.exitstatus == 0


def test_the_last_message_is_edited_and_the_last_answer_copied(terminal):
    chat = terminal("-n", "4")
    chat.type("//import o\\\rand")
    chat.type("/edit")
    chat.type(" more")
    assert chat.messages()[::2] == ["/import o\nand more"]
    chat.type("/edit")
    chat.interrupt()
    chat.type("next")
    messages = chat.messages()
    assert messages[::2] == ["/import o\nand more", "next"]
    chat.child.send("/copy\r")
    chat.child.expect(r"\x1b\]52;c;([\w+/=]*)\x07")
    assert base64.b64decode(chat.child.match[1]).decode() == messages[-1]
    assert "clipboard" in chat.ready()
    assert chat.leave() == 0


@pytest.mark.parametrize(
    ("options", "env", "is_drawn"),
    [((), {}, True), (("--no-markdown",), {}, False), ((), {"NO_COLOR": "1"}, False)],
)
def test_markdown_is_drawn_and_raw_on_request(terminal, templated, options, env, is_drawn):
    model = ("-m", str(templated()), "--draft-length", "0", "--grammar", says("Some `code` here"))
    chat = terminal(*model, *options, **env)
    shown = chat.type("x")
    assert chat.messages()[1] == "Some `code` here"
    assert ("`code`" in shown) != is_drawn
    assert "code" in shown
    assert chat.leave() == 0


def test_reasoning_is_shown_above_the_answer(terminal, templated):
    grammar = says("<think>\nIs *it* so?\n</think>\n\n*Yup*")
    model = ("-m", str(templated(THINKING)), "--draft-length", "0", "--grammar", grammar)
    for options, answer in (((), "Yup"), (("--no-markdown",), "*Yup*")):
        chat = terminal(*model, *options)
        chat.child.send("x\r")
        chat.child.expect_exact("\x1b[2m")  # dim
        shown = chat.ready()
        assert shown.index("Is *it* so?") < shown.rindex(answer)
        assert chat.messages() == ["x", "*Yup*"]
        assert chat.leave() == 0


def test_ctrl_c_while_it_reasons(terminal, templated):
    grammar = 'root ::= <think> "a"{1900} </think>'
    chat = terminal("-m", str(templated(THINKING)), "--draft-length", "0", "-c", "4096", "--grammar", grammar)
    chat.child.send("x\r")
    chat.child.expect("reasoning · ")  # the figures below the reasoning
    assert "stopped while it reasoned: not kept" in chat.interrupt()
    assert chat.messages() == []
    assert "reasoning off" in chat.type("/reasoning off")
    assert chat.leave() == 0


def test_it_ends_when_its_terminal_is_gone(terminal):
    """Programs started with nohup get no SIGHUP then."""
    chat = terminal()
    os.dup2(os.open(os.devnull, os.O_RDWR), chat.child.child_fd)
    for _ in range(100):
        if not chat.child.isalive():
            break
        time.sleep(0.1)
    assert chat.child.exitstatus == 0
