"""The chat's input and output: an editor and rendered Markdown on a terminal, plain text elsewhere."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spac import env
from spac.cli.program import leave_stdout
from spac.errors import InputError
from spac.machine.files import plain

if TYPE_CHECKING:
    from spac.chat.dialogue import Piece

FENCE = '"""'
PROMPT = "> "
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REFRESH_PER_S = 8


class Source(Protocol):
    """A source of messages. Its `read` raises EOFError at the end, and KeyboardInterrupt for Ctrl-C."""

    def read(self, draft: str = "") -> str:
        """Return the next message, which the user makes of `draft`."""


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


def fold(text: str) -> str:
    """Return what a user types to send this message."""
    text = f"/{text}" if text.startswith("/") else text
    return text if is_complete(text) and unfold(text) == text else f"{FENCE}\n{text}\n{FENCE}"


class Lines:
    """Plain lines of stdin, for scripts and pipes."""

    def read(self, draft: str = "") -> str:
        """Return the next message. Raise EOFError at the end of stdin, and InputError for a draft."""
        if draft:
            raise InputError("/edit needs the new text behind it here: there is no line editor")
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

    def read(self, draft: str = "") -> str:
        """Return the next message, for which `draft` stands in the line. Raise KeyboardInterrupt for Ctrl-C.

        Raise EOFError for Ctrl-D, and if the terminal is gone.
        """
        try:
            return unfold(str(self._session.prompt(PROMPT, default=fold(draft))))
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

    def interrupt(event: Any) -> None:
        """Leave the line. A further press that comes while it is being left changes nothing."""
        future = event.app.future
        if future is not None and not future.done():
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    keys.add("c-c")(interrupt)
    keys.add("<sigint>")(interrupt)
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
        with plain(path):
            pass
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def history_file() -> Path:
    """Return the path of the editor's history."""
    return env.state_folder() / "chat-history"


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """Keep typed keys, `^C` among them, out of an answer that is being shown. They count afterwards."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # stdin is no terminal, or closed
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def copy(text: str) -> None:
    """Hand `text` to the terminal for its clipboard (OSC 52). Raise InputError without a terminal.

    A terminal does not tell if it took it.
    """
    terminal = next((each for each in (sys.stderr, sys.stdout) if each.isatty()), None)
    if terminal is None or os.environ.get("TERM", "dumb") == "dumb":
        raise InputError("/copy needs a terminal with a clipboard: /save FILE writes the conversation")
    coded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    terminal.write(f"\033]52;c;{coded}\a")
    terminal.flush()


class Display(Protocol):
    """Shows one answer, from its first piece to its last. If the pieces fail, the shown ones stay."""

    def show(self, pieces: Iterator[Piece], status: Callable[[], str]) -> None:
        """Show the pieces as they come; `status` returns the line below them."""


def visible(text: str) -> str:
    """Return `text` with a replacement character for each control character.

    Models may write escape sequences, which a terminal would obey.
    """
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


class Plain:
    """Writes pieces as they come: without control characters on a terminal, elsewhere exactly.

    On a terminal, reasoning stands before the answer. Elsewhere it goes to stderr, or nowhere if `quiet`.
    """

    def __init__(self, *, terminal: bool, quiet: bool = False) -> None:
        self._clean = visible if terminal else str
        self._terminal, self._quiet = terminal, quiet

    def show(self, pieces: Iterator[Piece], _status: Callable[[], str]) -> None:
        """Write the pieces to stdout, and a newline at the end."""
        out, reasoning = sys.stdout, _Reasoning(self._write_aside, apart=not self._terminal)
        try:
            for piece in pieces:
                if piece.is_reasoning:
                    reasoning.write(piece.text)
                    continue
                reasoning.end()
                out.write(self._clean(piece.text))
                out.flush()
        finally:
            reasoning.end()
            out.write("\n")
            out.flush()

    def _write_aside(self, text: str) -> None:
        if self._terminal:
            sys.stdout.write(text)
            sys.stdout.flush()
        elif not self._quiet:
            with contextlib.suppress(OSError):  # stderr may be closed
                sys.stderr.write(text)
                sys.stderr.flush()


class _Reasoning:
    """Writes reasoning as it comes. It is dim on a terminal.

    Without colors, lines that name reasoning and answer stand before each if both share a stream.
    """

    def __init__(self, write: Callable[[str], None], *, apart: bool) -> None:
        self._write, self._apart = write, apart
        is_terminal = not apart or sys.stderr.isatty()
        self._clean = visible if is_terminal else str
        self._is_dim = is_terminal and not env.NO_COLOR.get()
        self._is_open, self._space = False, ""

    def write(self, text: str) -> None:
        if not self._is_open and not self._apart and not self._is_dim:
            self._write("[reasoning]\n")
        self._is_open = True
        text = self._space + self._clean(text)
        shown = text.rstrip()  # white space at the end of the reasoning is not shown
        self._space = text[len(shown) :]
        if shown:
            self._write(f"\033[2m{shown}\033[0m" if self._is_dim else shown)

    def end(self) -> None:
        """End the reasoning; the answer follows."""
        if self._is_open:
            self._write("\n" if self._apart else "\n\n" if self._is_dim else "\n[answer]\n")
        self._is_open, self._space = False, ""


class Markdown:
    """Shows answers as rendered Markdown, and reasoning as dim text.

    Complete blocks are printed for good. The last block is drawn anew while it grows, as much of it as fits
    on the screen, with the figures below.
    """

    def __init__(self) -> None:
        """Open the console. Raise InputError if rich is missing."""
        try:
            from rich.console import Console
        except ImportError:
            raise InputError(
                "rendered Markdown needs rich: run `pip install 'spac[chat]'`, or add --no-markdown"
            ) from None
        self._console: Any = Console(highlight=False)
        self._tail, self._is_reasoning, self._is_first = "", False, True
        self._status: Callable[[], str] = str

    def show(self, pieces: Iterator[Piece], status: Callable[[], str]) -> None:
        """Show the pieces, and the figures of `status` while they come."""
        from rich.live import Live

        self._tail, self._is_reasoning, self._is_first, self._status = "", False, True, status
        live = Live(
            console=self._console,
            get_renderable=self._growing,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            vertical_overflow="crop",
        )
        try:
            with live:
                for piece in pieces:
                    self._take(piece)
        finally:
            rest, self._tail = self._tail, ""
            self._print(rest)

    def _take(self, piece: Piece) -> None:
        if piece.is_reasoning != self._is_reasoning:
            rest, self._tail = self._tail, ""
            self._print(rest)
            self._is_reasoning = piece.is_reasoning
        self._tail += visible(piece.text)
        if "\n" in piece.text:
            split = split_paragraphs if self._is_reasoning else split_blocks
            complete, self._tail = split(self._tail)
            self._print(complete)

    def _print(self, text: str) -> None:
        """Print blocks, with an empty line before each except the first."""
        if not text.strip():
            return
        if not self._is_first:
            self._console.print()
        self._console.print(self._drawn(text))
        self._is_first = False

    def _drawn(self, text: str) -> Any:
        from rich.text import Text

        return Text(text.strip("\n"), style="dim") if self._is_reasoning else rendered(text)

    def _growing(self) -> Any:
        from rich.console import Group
        from rich.segment import SegmentLines
        from rich.text import Text

        console = self._console
        lines = console.render_lines(self._drawn(self._tail), pad=False) if self._tail else []
        fit = max(1, console.size.height - 3)
        return Group(
            SegmentLines(lines[-fit:], new_lines=True),
            Text(self._status(), style="dim", no_wrap=True, overflow="ellipsis"),
        )


def _parser() -> Any:
    from markdown_it import MarkdownIt

    # HTML is off, because a renderer for terminals drops it, <think> included.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def rendered(text: str) -> Any:
    """Return Markdown as rich draws it, with HTML as plain text."""
    from rich import markdown

    drawn = markdown.Markdown(text)
    drawn.parsed = _parser().parse(text)
    return drawn


def split_blocks(text: str) -> tuple[str, str]:
    """Return the complete blocks, and the last one, which may still grow. Together they are `text`."""
    starts = [
        token.map[0]
        for token in _parser().parse(text)
        if token.level == 0 and token.nesting >= 0 and token.map
    ]
    if len(starts) < 2:
        return "", text
    lines = text.split("\n")
    complete = "".join(line + "\n" for line in lines[: starts[-1]])
    return complete, text[len(complete) :]


def split_paragraphs(text: str) -> tuple[str, str]:
    """Return the complete paragraphs, and the last one. Together they are `text`."""
    at = text.rfind("\n\n") + 1
    return text[:at], text[at:]
