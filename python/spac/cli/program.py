"""The common parts of spac's programs: the choice of models, notes, progress, and errors of one line.

Results go to stdout, everything else goes to stderr. Exit codes: 0 done, 2 bad input, 130 interrupted,
141 stdout was closed, 1 a fault of spac or of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import env
from spac.cli import interrupt
from spac.cli.options import Parser, draft_of, target_of
from spac.config.engine import STATE_WORDS
from spac.config.values import Adapter
from spac.errors import InputError, OutOfMemoryError, SpacError, one_line
from spac.machine.files import check_outputs, read_plain, unreadable, unwritable
from spac.machine.terminal import wrapped

if TYPE_CHECKING:
    from spac.engine import Engine

READING_S = 0.5  # seconds between two lines on a prompt's progress
LONG_PROMPT = 64  # tokens; a shorter prompt is evaluated before progress could be seen
FAULT, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, interrupt.EXIT_CODE, 141
_OUTPUTS = {
    "state": "--state", "timeline": "--timeline", "record": "--record", "stats_file": "--stats-file",
    "json": "--json", "output": "--output", "submit": "--submit",
}  # fmt: skip
_INPUTS = {
    "target": "the target", "draft": "the draft", "mmproj": "the projector", "image": "the image",
    "file": "the prompt", "load": "the conversation", "lora": "an adapter",
    "grammar_file": "the grammar", "json_schema_file": "the schema",
    "chat_template_file": "the chat template", "recording": "the recording",
}  # fmt: skip
"""The files of all programs by the names of their options, and what messages call them."""


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
        check_outputs(*files(options))
        code = work()
        sys.stdout.flush()  # else the interpreter meets a full disk at exit
        return code
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
    if _is_of_stdout(error):
        leave_stdout()
    return code


def files(options: argparse.Namespace) -> tuple[dict[str, Path | str], list[tuple[str, Path | str]]]:
    """Return the outputs and the inputs that the options name, for `check_outputs`.

    "-" and the words of --state are left out.
    """

    def paths(name: str) -> list[Path | str]:
        value = getattr(options, name, None)
        found = value if isinstance(value, list | tuple) else [value]
        found = [each.path if isinstance(each, Adapter) else each for each in found]
        words = STATE_WORDS if name == "state" else ("-",)
        return [each for each in found if isinstance(each, Path | str) and str(each) not in words]

    streams: list[tuple[str, Path | str]] = [(name, f"/dev/{name}") for name in ("stdin", "stdout", "stderr")]
    inputs = [(what, path) for name, what in _INPUTS.items() for path in paths(name)]
    return {flag: path for name, flag in _OUTPUTS.items() for path in paths(name)}, streams + inputs


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
    if _is_of_stdout(error):
        return str(unwritable("stdout", error))
    if isinstance(error, SpacError | ImportError | OSError):
        return text
    return f"internal fault: {type(error).__name__}: {text} (--verbose shows where)"


def say(text: str, *, style: str = "{}", is_data: bool = False) -> None:
    """Print lines on stderr, in a style that has {} for them.

    On a terminal, lines break between words, unless they are data for a program.
    """
    with contextlib.suppress(OSError):  # stderr may be closed
        print(style.format(text if is_data else wrapped(text, sys.stderr)), file=sys.stderr, flush=True)


def broken_pipe() -> int:
    """Point stdout at the null device, and return the exit code for a closed stdout.

    Otherwise the interpreter writes to the closed pipe once more at exit.
    """
    leave_stdout()
    return BROKEN_PIPE


def leave_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last write to it does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_of_stdout(error: Exception) -> bool:
    """Return True for a failed write to stdout. Other failed writes have become an InputError."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, OSError) and error.filename is None and error.errno in full


def write_out(data: bytes) -> None:
    """Write all of `data` to stdout.

    With PYTHONUNBUFFERED, `sys.stdout` writes a part of it without an error if the pipe is closed meanwhile.
    """
    sys.stdout.flush()
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(data)


def read_prompt(name: str) -> str:
    """Return the text of a file; raise InputError if it cannot be read or is not UTF-8."""
    try:
        data = read_plain(name)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise unreadable(name, error, "the prompt ") from None
    return as_text(data, name)


def read_image(name: str) -> bytes:
    """Return the bytes of an image's file; raise InputError if it cannot be read."""
    try:
        return read_plain(Path(name).expanduser())
    except (OSError, ValueError) as error:
        raise unreadable(name, error, "the image ") from None


def as_text(data: bytes | str, name: str) -> str:
    """Return a text; raise InputError if it is not UTF-8. In a str, foreign bytes are surrogates."""
    try:
        return (data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data).decode()
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise InputError(f"{name}: byte {at} is not UTF-8: convert the text (iconv -t UTF-8)") from None


def models(options: argparse.Namespace, talk: Talk | None = None) -> tuple[Path, Path | None, Any]:
    """Return target, draft, and the demo's module if its pair is used.

    Models that are given by name are downloaded first. Without a GPU, the demo pair runs on the simulated
    device by default; `talk` says what it is. Raise InputError for a draft without a target, and if neither a
    target nor a demo pair is there.
    """
    if (target := target_of(options)) is not None:
        return target, draft_of(options), None
    if "draft" in options or options.hf_repo_draft is not None:
        raise InputError("a draft without a target: add --target FILE")
    try:
        demo: Any = importlib.import_module("spac.demo")
        target, draft = Path(demo.TARGET), Path(demo.DRAFT)
    except (ImportError, AttributeError):
        raise InputError("this installation has no demo pair: name a model with --target FILE") from None
    from spac.model.devices import choose_device

    if talk is not None:
        talk.note("the demo pair tells short stories alone: `spac setup` finds a model for you")
    if choose_device("auto") is None and not env.DEVICE.get():
        os.environ[env.DEVICE.name] = "simulated"  # the demo is small, and shows the split
    options.keeps_split = "the demo pair shows the split"  # on a GPU too
    return target, draft, demo


class Talk:
    """Prints notes and progress on stderr. It prints nothing with --quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._line = ""
        self._lock = threading.Lock()  # of the line, which two threads write while a prompt is read
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

    def reads(self, engine: Engine) -> Callable[[int, int], object] | None:
        """Return the callback for `Engine.generate(progress=…)`; None if nobody would see its line.

        Between two calls, a thread shows what the engine estimates. It ends with the prompt.
        """
        if self.quiet or not sys.stderr.isatty():
            return None
        watch: list[threading.Thread] = []

        def follow() -> None:
            while engine.reading.now() is not None:
                with self._lock:
                    reading = engine.reading.now()
                    if reading is not None and reading.done < reading.total:
                        done = f"{reading.done} of {reading.total} tokens{reading.left}"
                        self.show(f"reading the prompt: {done}")
                time.sleep(READING_S)

        def read(done: int, total: int) -> None:
            if total < LONG_PROMPT:
                return
            if done >= total:
                self.end_progress()
                return
            with self._lock:
                self.show(f"reading the prompt: {done} of {total} tokens")
            if not watch:
                watch.append(threading.Thread(target=follow, name="reading", daemon=True))
                watch[0].start()

        return read

    def show(self, line: str) -> None:
        """Replace the progress line on stderr, if stderr is a terminal."""
        line = line[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be cleared
        if line != self._line and not self.quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()
            self._line = line

    def end_progress(self) -> None:
        """Clear the progress line."""
        with self._lock:
            if self._line:
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
                self._line = ""
