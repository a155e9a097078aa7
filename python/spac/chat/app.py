"""The chat program. It reads messages and shows answers until the user leaves.

Answers go to stdout, everything else goes to stderr. On a terminal, reasoning stands before its answer. The
exit codes are those of `spac.run`. A script's exit code is the worst one that a line of it caused: an
internal fault outranks bad input.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from spac import env
from spac.chat.arguments import add_chat_options, read_chat_options
from spac.chat.commands import COMMANDS, Leave, is_command, run_command
from spac.chat.conversation import Conversation
from spac.chat.terminal import (
    Display,
    Editor,
    Lines,
    Markdown,
    Plain,
    Source,
    history_file,
    without_echo,
)
from spac.cli import interrupt
from spac.cli.options import Parser, add_engine, add_sampling, number, read_config
from spac.cli.program import (
    BAD_INPUT,
    FAULT,
    Talk,
    add_talk,
    as_text,
    files,
    guarded,
    message_of,
    models,
    say,
)
from spac.config import COUNT, Range
from spac.errors import InputError

if TYPE_CHECKING:
    from spac.chat.dialogue import Dialogue, Piece


def make_parser() -> Parser:
    """Return the parser with the options of `spac.chat`."""
    parser = Parser(
        prog="spac chat",
        description="Talk with a Mixture-of-Experts model in the terminal. /help lists the commands. "
        "Without --target, the bundled demo pair answers: it tells short stories, and is no assistant.",
        like_llama_cpp=True,
    )
    talk = parser.add_argument_group("chat")
    talk.add_argument("--system", "-sys", "--system-prompt", metavar="TEXT", help="system prompt")
    talk.add_argument("--load", metavar="FILE", help="go on with a conversation that /save wrote")
    talk.add_argument(
        "--max-tokens", "--predict", "--n-predict", "-n", metavar="N", default=-1,
        type=number(int, Range(-1, COUNT.high)),
        help="tokens of an answer at most; -1 goes on until the context is full (default: %(default)s)",
    )  # fmt: skip
    talk.add_argument("--no-markdown", action="store_true", help="show answers as they are written")
    talk.add_argument("--no-history", action="store_true", help="do not keep typed lines for the next chat")
    add_chat_options(talk)
    add_engine(parser)
    add_sampling(parser)
    add_talk(parser.add_argument_group("output"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chat and return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, App(options).run)


class App:
    """One run of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._talk = Talk(options.quiet)
        self._interactive = sys.stdin is not None and sys.stdin.isatty()
        self._code = 0

    def run(self) -> int:
        """Talk until the user leaves, and return the exit code."""
        options = self._options
        source, display = self._source(), self._display()
        conversation = Conversation.load(Path(options.load)) if options.load else Conversation()
        if options.system is not None:
            conversation.system = as_text(options.system, "--system")
        chat_options = read_chat_options(options)
        target, draft, demo = models(options, self._talk)
        config = read_config(options, target, draft, **(dict(demo.SAMPLING) if demo else {}))
        from spac.chat.dialogue import Dialogue  # imported late: these modules load the library
        from spac.engine import Engine
        from spac.engine.chat_format import ChatFormat

        with interrupt.Interrupt(lambda: interrupt.leave):
            engine = Engine(config, progress=self._talk.progress)
        with engine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._talk.end_progress()
            self._talk.show_notes(engine)
            limit = None if options.max_tokens < 0 else options.max_tokens
            chat = ChatFormat(engine.target, chat_options.template)
            if chat.is_plain:  # such a model writes on what was written, and knows nothing of Markdown
                display = self._plain()
            dialogue = Dialogue(engine, chat, conversation, limit, chat_options)
            outputs, inputs = files(options)
            dialogue.files = [(f"the file of {flag}", path) for flag, path in outputs.items()]
            dialogue.files += [each for each in inputs if each[1] != options.load]  # that one may be replaced
            for note in dialogue.notes:
                self._talk.note(note)
            if self._interactive:
                self._talk.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")
            dialogue.on_reading = self._talk.reads(engine) if isinstance(display, Plain) else None
            self._converse(dialogue, source, display)
        return self._code

    def _source(self) -> Source:
        if not self._interactive:
            if isinstance(sys.stdin, TextIOWrapper):  # foreign bytes are refused when a message is whole
                sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
            return Lines()
        words = [f"/{name}" for name in COMMANDS]
        return Editor(words, None if self._options.no_history else history_file())

    def _display(self) -> Display:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        if not sys.stdout.isatty() or self._options.no_markdown or env.NO_COLOR.get():
            return self._plain()
        return Markdown()

    def _plain(self) -> Display:
        return Plain(terminal=sys.stdout.isatty(), quiet=self._talk.quiet)

    def _converse(self, dialogue: Dialogue, source: Source, display: Display) -> None:
        while True:
            try:
                draft, dialogue.draft = dialogue.draft, None
                text = as_text(source.read(draft or ""), "the message")
                if is_command(text):
                    self._follow(dialogue, text, display)
                elif text:
                    forgotten = dialogue.n_forgotten
                    answer = dialogue.answer if draft is None else dialogue.answer_again
                    pieces = answer(text.removeprefix("/") if text.startswith("//") else text)
                    self._answer(dialogue, pieces, forgotten, display)
            except (EOFError, Leave):
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
            except BrokenPipeError:
                raise
            except Exception as error:  # no error ends the chat: the conversation would be lost
                self._refuse(error)

    def _follow(self, dialogue: Dialogue, line: str, display: Display) -> None:
        forgotten = dialogue.n_forgotten
        done = run_command(dialogue, line)
        if isinstance(done, str):
            self._show(done)
        else:
            self._answer(dialogue, done, forgotten, display)

    def _answer(self, dialogue: Dialogue, pieces: Iterator[Piece], forgotten: int, display: Display) -> None:
        """Show an answer. `forgotten` is how many exchanges the model did not see before it."""
        if dialogue.n_forgotten > forgotten:
            n = dialogue.n_forgotten - forgotten
            self._talk.note(f"context full: the oldest {n} exchanges are no longer seen by the model")
        generation = dialogue.generation
        assert generation is not None
        # A second Ctrl-C does not end the process: the conversation would be lost.
        with without_echo(), interrupt.Interrupt(lambda: generation.cancel, insistent=False):
            try:
                display.show(pieces, dialogue.status)
            finally:
                self._talk.end_progress()
        if dialogue.ending:
            self._talk.note(dialogue.ending)
        self._talk.show_notes(dialogue.engine)
        self._show(dialogue.status())

    def _show(self, text: str) -> None:
        if not self._talk.quiet:
            is_dim = sys.stderr.isatty() and not env.NO_COLOR.get()
            say(text, style="\033[2m{}\033[0m" if is_dim else "{}")

    def _refuse(self, error: Exception) -> None:
        if not self._interactive and self._code != FAULT:
            self._code = BAD_INPUT if isinstance(error, InputError) else FAULT
        say(f"spac chat: error: {message_of(error)}")
