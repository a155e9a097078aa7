"""Generate text from a prompt: `python -m spac.run --target model.gguf --draft draft.gguf --prompt "def f("`.

The text goes to stdout as it comes, everything else to stderr. Exit codes: 0 done, 2 bad input, 130
interrupted, 141 nobody reads stdout any more, 1 a fault of spac or of the device.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until the program can end in good order, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import contextlib
import importlib
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import interrupt
from spac.config import COUNT, EngineConfig, Range, SamplingConfig
from spac.errors import InputError, OutOfMemoryError, SpacError, one_line
from spac.options import Parser, add_config, number, read_config

if TYPE_CHECKING:
    from spac.engine import Engine
    from spac.generation import Generation
    from spac.stats import RunStats

BAD_INPUT, INTERRUPTED, BROKEN_PIPE, FAULT = 2, interrupt.EXIT_CODE, 141, 1
STDIN_PATIENCE_S = 0.5  # for a pipe that may or may not bring a prompt


def make_parser() -> Parser:
    """The options of `spac.run`."""
    parser = Parser(
        prog="spac.run",
        description="Generate text with a Mixture-of-Experts model split between a device and the CPU. "
        "Without --target, the bundled demo pair runs.",
    )
    text = parser.add_argument_group("text")
    prompt = text.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", "-p", metavar="TEXT", help="the text to continue (else --file, else stdin)"
    )
    prompt.add_argument("--file", "-f", metavar="FILE", help="read the prompt from a file; - is stdin")
    text.add_argument(
        "--max-tokens", "--predict", "--n-predict", "-n", metavar="N", default=256,
        type=number(int, Range(-1, COUNT.high)),
        help="tokens to generate at most; -1 goes on until the context is full (default: 256)",
    )  # fmt: skip
    text.add_argument("--stop", "--reverse-prompt", "-r", metavar="TEXT", action="append", default=[],
                      help="end before this text; may be given several times")  # fmt: skip
    text.add_argument("--echo", action="store_true", help="print the prompt before the text")
    add_config(parser.add_argument_group("engine"), EngineConfig)  # type: ignore[arg-type]
    add_config(parser.add_argument_group("sampling"), SamplingConfig)  # type: ignore[arg-type]
    output = parser.add_argument_group("output")
    output.add_argument("--stats", choices=("text", "json", "none"), default="text",
                        help="figures at the end, on stderr (default: text)")  # fmt: skip
    output.add_argument("--stats-file", metavar="FILE", help="write the figures as JSON to a file too")
    output.add_argument(
        "--verbose", "-v", action="store_true", help="show llama.cpp's log and the cause of faults"
    )
    output.add_argument("--quiet", "-q", action="store_true", help="no notes and no progress on stderr")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a fault in the library starts a debugger on stdout
    if options.verbose:
        logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, format="%(message)s")
    try:
        for name in ("stdout", "stderr"):  # None where the caller has closed it
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the process's life)
        return Run(options).run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except (InputError, OutOfMemoryError, ImportError) as error:  # ImportError: the library is not built
        return _fail(parser, options, error, BAD_INPUT)
    except Exception as error:  # whatever it is, the user gets one line
        return _fail(parser, options, error, FAULT)


def _fail(parser: Parser, options: argparse.Namespace, error: Exception, code: int) -> int:
    if options.verbose:
        logging.exception("the cause:")
    known = isinstance(error, SpacError | ImportError | OSError)
    text = one_line(str(error)) or type(error).__name__
    message = text if known else f"internal fault: {type(error).__name__}: {text} (--verbose shows where)"
    _say(f"{parser.prog}: error: {message}")
    return code


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be listening
        print(line, file=sys.stderr, flush=True)


def _broken_pipe() -> int:
    """Nobody reads stdout: keep the interpreter from trying once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


class Run:
    """One run of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.generation: Generation | None = None
        self._progress = ""
        self._n_notes = 0

    def run(self) -> int:
        options = self.options
        target, draft, demo = self._models()
        prompt = self._prompt(demo)
        self._write_figures("")  # whether it can be: not after a long generation
        config = read_config(options, target, draft, **(dict(demo.SAMPLING) if demo else {}))
        from spac.engine import Engine  # late: it loads the library, and bad options should not wait for that

        quiet = options.quiet or not sys.stderr.isatty()
        progress = None if quiet else self._show_progress
        with interrupt.Interrupt(self._canceller), Engine(config, progress=progress) as engine:
            self._end_progress()
            self._show_notes(engine)
            return self._generate(engine, prompt)

    # Input

    def _models(self) -> tuple[Path, Path | None, Any]:
        """Target, draft, and the demo's module where its pair is used."""
        given = vars(self.options)
        if "target" in given:
            return given["target"], given.get("draft"), None
        if "draft" in given:
            raise InputError("a draft without a target: add --target FILE")
        try:
            demo: Any = importlib.import_module("spac.demo")
            target, draft = Path(demo.TARGET), Path(demo.DRAFT)
        except (ImportError, AttributeError):
            raise InputError("this installation has no demo pair: name a model with --target FILE") from None
        return target, draft, demo

    def _prompt(self, demo: Any) -> str:
        options = self.options
        if options.prompt is not None:
            return str(options.prompt)
        if options.file is not None and options.file != "-":
            return _read_text(options.file)
        wait = None if options.file == "-" or demo is None else STDIN_PATIENCE_S
        text = "" if sys.stdin is None or (sys.stdin.isatty() and options.file is None) else _read_stdin(wait)
        if text:
            return text
        if demo is None or options.file == "-":
            raise InputError("no prompt: give --prompt TEXT, --file FILE, or pipe it to stdin")
        options.echo = True  # the user has not seen it
        return str(demo.PROMPT)

    # Output

    def _generate(self, engine: Engine, prompt: str) -> int:
        options = self.options
        out = sys.stdout
        out.reconfigure(errors="replace")  # type: ignore[union-attr]
        limit = None if options.max_tokens < 0 else options.max_tokens
        self.generation = generation = engine.generate(prompt, limit, stop=options.stop)
        code = 0
        try:
            if options.echo:
                out.write(prompt)
            for piece in generation:
                out.write(piece)
                out.flush()
            out.write("\n")
            out.flush()
        except BrokenPipeError:
            generation.cancel()
            code = _broken_pipe()
        self._show_notes(engine)
        self._report(generation.stats)
        return code or (INTERRUPTED if generation.reason == "cancelled" else 0)

    def _show_notes(self, engine: Engine) -> None:
        """Those that came since the last call."""
        notes = engine.notes
        if not self.options.quiet:
            for note in notes[self._n_notes :]:
                _say(f"spac: {note}")
        self._n_notes = len(notes)

    def _report(self, stats: RunStats) -> None:
        self._write_figures(stats.to_json() + "\n")
        if self.options.stats == "json":
            _say(stats.to_json())
        elif self.options.stats == "text":
            _say(stats.table())

    def _write_figures(self, text: str) -> None:
        path = self.options.stats_file
        if path is not None:
            try:
                Path(path).write_text(text)
            except (OSError, ValueError) as error:  # ValueError: a null character in the name
                reason = getattr(error, "strerror", None) or str(error)
                raise InputError(f"{path}: cannot be written: {reason}") from None

    def _show_progress(self, path: Path, done: float) -> bool:
        line = f"\rloading {path.name} {done:4.0%}"
        if line != self._progress:
            sys.stderr.write(line)
            sys.stderr.flush()
            self._progress = line
        return True

    def _end_progress(self) -> None:
        if self._progress:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._progress = ""

    def _canceller(self) -> Callable[[], None] | None:
        return self.generation.cancel if self.generation is not None else None


def _read_text(name: str) -> str:
    try:
        return Path(name).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{name}: the prompt cannot be read: {error.strerror}") from None


def _read_stdin(patience_s: float | None) -> str:
    """All of stdin; "" when nothing has come within `patience_s` (an open pipe that nobody writes to)."""
    is_pipe = stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
    if is_pipe and patience_s is not None and not select.select([sys.stdin], [], [], patience_s)[0]:
        return ""
    return sys.stdin.buffer.read().decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
