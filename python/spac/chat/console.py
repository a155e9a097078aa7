"""Sources of messages: a line editor on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from spac import env
from spac.cli.program import leave_stdout
from spac.errors import InputError

FENCE = '"""'
PROMPT = "> "


class Source(Protocol):
    """A source of messages. Its `read` raises EOFError at the end, and KeyboardInterrupt for Ctrl-C."""

    def read(self) -> str:
        """Return the next message."""


def is_complete(text: str) -> bool:
    """Return True if a message ends after `text`.

    A message goes on after a backslash at the end of a line, and inside triple quotes.
    """
    stripped = text.strip()
    if stripped.startswith(FENCE):
        return len(stripped) >= 2 * len(FENCE) and stripped.endswith(FENCE)
    return not text.endswith("\\")


def unfold(text: str) -> str:
    """Return the message without backslashes at line ends and without the quotes around it."""
    stripped = text.strip()
    if stripped.startswith(FENCE):
        return stripped.removeprefix(FENCE).removesuffix(FENCE).strip("\n")
    return text.replace("\\\n", "\n").removesuffix("\\").strip()


class Lines:
    """Plain lines of stdin, for scripts and pipes."""

    def read(self) -> str:
        """Return the next message. Raise EOFError at the end of stdin."""
        text = ""
        while True:
            line = sys.stdin.readline()
            text += line.removesuffix("\n")
            if not line:
                if text:
                    return unfold(text)
                raise EOFError
            if is_complete(text):
                return unfold(text)
            text += "\n"


class Editor:
    """A line editor with history. Enter sends, Alt-Enter starts a new line, a paste stays whole."""

    def __init__(self, words: Iterable[str], history: Path | None) -> None:
        """Prepare the editor. Raise InputError if prompt_toolkit is missing.

        Tab completes `words` at the start of a line. Without `history`, lines are remembered for this chat
        only.
        """
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.completion import WordCompleter
            from prompt_toolkit.output import create_output
        except ImportError:
            raise InputError("the line editor needs prompt_toolkit: run `pip install 'spac[chat]'`") from None
        self._session: Any = PromptSession(
            history=_history(history),
            completer=WordCompleter(sorted(words), sentence=True),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="  ",
            output=create_output(always_prefer_tty=True),  # answers go to stdout, which may be a file
        )

    def read(self) -> str:
        """Return the next message. Raise KeyboardInterrupt for Ctrl-C.

        Raise EOFError for Ctrl-D, and if the terminal is gone.
        """
        try:
            return unfold(str(self._session.prompt(PROMPT)))
        except OSError as error:
            if error.errno == errno.EIO:
                try:
                    sys.stdout.flush()
                except OSError:  # it was the terminal too
                    leave_stdout()
                raise EOFError from None
            raise


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def enter(event: Any) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    def new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    keys.add("enter")(enter)
    keys.add("escape", "enter")(new_line)
    return keys


def _history(path: Path | None) -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # only the user may read it
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def history_file() -> Path:
    """Return the path of the editor's history."""
    return env.state_folder() / "chat-history"
