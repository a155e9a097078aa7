"""The common parts of spac's programs: the choice of models, notes, progress, and errors of one line.

Results go to stdout, everything else goes to stderr. Exit codes: 0 done, 2 bad input, 130 interrupted,
141 stdout was closed, 1 a fault of spac or of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import env
from spac.cli import interrupt
from spac.cli.options import Parser
from spac.errors import InputError, OutOfMemoryError, SpacError, one_line

if TYPE_CHECKING:
    from spac.engine import Engine

LONG_PROMPT = 64  # tokens; a shorter prompt is evaluated before progress could be seen
FAULT, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, interrupt.EXIT_CODE, 141


def add_talk(parser: argparse._ActionsContainer) -> None:
    """Add --verbose and --quiet, which say how much goes to stderr."""
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="show llama.cpp's log and the cause of faults"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no notes and no progress on stderr")


def guarded(parser: Parser, options: argparse.Namespace, work: Callable[[], int]) -> int:
    """Return the exit code of `work()`. Print one line on stderr for an exception, and return its code."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a fault in the library starts a debugger on stdout
    if options.verbose:
        logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, format="%(message)s")
    if not options.quiet:
        for note in parser.notes:
            say(f"spac: {note}")
    try:
        for name in ("stdout", "stderr"):  # None where the caller has closed it
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the process's life)
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return broken_pipe()
    except (InputError, OutOfMemoryError, ImportError) as error:  # ImportError: the library is not built
        return _fail(parser, options, error, BAD_INPUT)
    except Exception as error:  # the user gets one line for any error
        return _fail(parser, options, error, FAULT)


def _fail(parser: Parser, options: argparse.Namespace, error: Exception, code: int) -> int:
    if options.verbose:
        logging.exception("the cause:")
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")  # clears the progress line
    text = message_of(error)
    say(f"{parser.prog}: error: {in_options(parser, text) if isinstance(error, InputError) else text}")
    return code


def in_options(parser: argparse.ArgumentParser, text: str) -> str:
    """Return a message in which options of the command line replace the configuration's names.

    A name of one word, such as `slots`, is replaced only at the beginning, where it is the subject of the
    message. Elsewhere it may be a word of a sentence.
    """
    for action in parser._actions:
        flag = next((each for each in action.option_strings if each.startswith("--")), None)
        if flag is None:
            continue
        name = re.escape(action.dest)
        pattern = rf"(?<![\w./'-]){name}(?![\w./'-])" if "_" in action.dest else rf"^{name}(?=:| must )"
        text = re.sub(pattern, flag, text)
    return text


def message_of(error: Exception) -> str:
    """Return the line that a user gets for an error."""
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, SpacError | ImportError | OSError):
        return text
    return f"internal fault: {type(error).__name__}: {text} (--verbose shows where)"


def say(line: str) -> None:
    """Print a line on stderr."""
    with contextlib.suppress(OSError):  # stderr may be closed
        print(line, file=sys.stderr, flush=True)


def broken_pipe() -> int:
    """Point stdout at the null device, and return the exit code for a closed stdout.

    Otherwise the interpreter writes to the closed pipe once more at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def models(options: argparse.Namespace) -> tuple[Path, Path | None, Any]:
    """Return target, draft, and the demo's module if its pair is used.

    Without a GPU, the demo pair runs on the simulated device by default.
    Raise InputError for a draft without a target, and if neither a target nor a demo pair is there.
    """
    given = vars(options)
    if "target" in given:
        return given["target"], given.get("draft"), None
    if "draft" in given:
        raise InputError("a draft without a target: add --target FILE")
    try:
        demo: Any = importlib.import_module("spac.demo")
        target, draft = Path(demo.TARGET), Path(demo.DRAFT)
    except (ImportError, AttributeError):
        raise InputError("this installation has no demo pair: name a model with --target FILE") from None
    from spac.model.pair import choose_device

    if choose_device("auto") is None and not env.DEVICE.get():
        os.environ[env.DEVICE.name] = "simulated"  # the demo is small, and shows the split
    return target, draft, demo


class Talk:
    """Prints notes and progress on stderr. It prints nothing with --quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._line = ""
        self._n_notes = 0

    def note(self, line: str) -> None:
        """Print a note on stderr."""
        if not self.quiet:
            say(f"spac: {line}")

    def show_notes(self, engine: Engine) -> None:
        """Print the engine's notes that are new since the last call."""
        notes = engine.notes
        for note in notes[self._n_notes :]:
            self.note(note)
        self._n_notes = len(notes)

    @property
    def progress(self) -> Callable[[Path, float], bool] | None:
        """The callback for `Engine(progress=…)`, which rewrites one line; None if nobody would see it."""
        return None if self.quiet or not sys.stderr.isatty() else self._show_progress

    def _show_progress(self, path: Path, done: float) -> bool:
        self.show(f"loading {path.name} {done:4.0%}")
        return True

    @property
    def reading(self) -> Callable[[int, int], object] | None:
        """The callback for `Engine.generate(progress=…)`; None if nobody would see its line."""
        return None if self.quiet or not sys.stderr.isatty() else self._show_reading

    def _show_reading(self, done: int, total: int) -> None:
        if total >= LONG_PROMPT:
            self.show(f"reading the prompt: {done} of {total} tokens")

    def show(self, line: str) -> None:
        """Replace the progress line on stderr, if stderr is a terminal."""
        line = line[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be cleared
        if line != self._line and not self.quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()
            self._line = line

    def end_progress(self) -> None:
        """Clear the progress line."""
        if self._line:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._line = ""
