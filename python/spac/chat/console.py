"""Where messages come from: a line editor on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from spac import env
from spac.errors import InputError

FENCE = '"""'
PROMPT = "> "


class Source(Protocol):
    """Gives one message after the other. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def read(self) -> str: ...


def is_complete(text: str) -> bool:
    """Whether a message ends here: not after a backslash, and not inside triple quotes."""
    stripped = text.strip()
    if stripped.startswith(FENCE):
        return len(stripped) >= 2 * len(FENCE) and stripped.endswith(FENCE)
    return not text.endswith("\\")


def unfold(text: str) -> str:
    """The message that was meant, without backslashes at line ends and quotes around it."""
    stripped = text.strip()
    if stripped.startswith(FENCE):
        return stripped.removeprefix(FENCE).removesuffix(FENCE).strip("\n")
    return text.replace("\\\n", "\n").removesuffix("\\").strip()


class Lines:
    """Plain lines of stdin, for scripts and pipes."""

    def read(self) -> str:
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
        """`words` are completed with Tab at the start; without `history` lines are remembered for this chat
        only. Raises InputError when prompt_toolkit is missing."""
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
            output=create_output(always_prefer_tty=True),  # stdout may be a file: answers go there
        )

    def read(self) -> str:
        return unfold(str(self._session.prompt(PROMPT)))


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
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # what people type is theirs alone
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def history_file() -> Path:
    """Where the editor's history is kept."""
    return env.state_folder() / "chat-history"
