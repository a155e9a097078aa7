"""Generate text from a prompt: `python -m spac.run --target model.gguf --draft draft.gguf --prompt "def f("`.

The text goes to stdout as it comes, everything else goes to stderr. Exit codes: 0 done, 2 bad input, 130
interrupted, 141 stdout was closed, 1 a fault of spac or of the device.
"""

from __future__ import annotations

from spac.cli import interrupt

if __name__ == "__main__":
    interrupt.leave_at_once()

import argparse
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac.cli.options import Parser, add_engine, add_sampling, number, read_config
from spac.cli.program import (
    INTERRUPTED,
    Talk,
    add_talk,
    as_text,
    broken_pipe,
    guarded,
    models,
    read_image,
    read_prompt,
    say,
)
from spac.config import COUNT, Range
from spac.errors import InputError
from spac.machine.files import write_atomically
from spac.stats.recording import Recorder

if TYPE_CHECKING:
    from spac.engine import Engine
    from spac.engine.generation import Generation
    from spac.stats import RunStats

STDIN_PATIENCE_S = 0.5  # the wait for a pipe, which may bring no prompt
_MEANING = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|([nrt'"\\]))""")


def make_parser() -> Parser:
    """Return the parser with the options of `spac.run`."""
    parser = Parser(
        prog="spac run",
        description="Generate text with a Mixture-of-Experts model split between the GPU and the CPU. "
        "Without --target, the bundled demo pair runs.",
        like_llama_cpp=True,
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
        help="tokens to generate at most; -1 goes on until the context is full (default: %(default)s)",
    )  # fmt: skip
    text.add_argument("--stop", "--reverse-prompt", "-r", metavar="TEXT", action="append", default=[],
                      help="end before this text; may be given several times")  # fmt: skip
    text.add_argument(
        "--escape", "-e", action="store_true",
        help=r"read \n, \t, \x41 and such in --prompt and --stop as what they stand for",
    )  # fmt: skip
    text.add_argument(
        "--image", metavar="FILE", action="append", default=[],
        help="show this image to a model with --mmproj; may be given several times; <__media__> in the "
        "prompt is an image's place, which is otherwise before the text",
    )  # fmt: skip
    text.add_argument("--echo", action="store_true", help="print the prompt before the text")
    add_engine(parser)
    add_sampling(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--stats", choices=("text", "full", "json", "none"), default="text",
                        help="figures at the end, on stderr: three lines, a table, or all as JSON "
                             "(default: %(default)s)")  # fmt: skip
    output.add_argument("--stats-file", metavar="FILE", help="write the figures as JSON to a file too")
    output.add_argument("--record", metavar="FILE.npz",
                        help="note what every step did and what ran when, for `spac report FILE.npz` and "
                             "replays")  # fmt: skip
    add_talk(output)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, Run(options).run)


class Run:
    """One run of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.generation: Generation | None = None
        self._recorder: Recorder | None = None
        self._talk = Talk(options.quiet)

    def run(self) -> int:
        """Generate and print the text, and return the exit code."""
        options = self.options
        target, draft, demo = models(options)
        prompt = self._prompt(demo)
        config = read_config(options, target, draft, **(dict(demo.SAMPLING) if demo else {}))
        if options.image and config.mmproj is None:
            raise InputError("--image: the model needs its projector to see images: add --mmproj FILE")
        images = [read_image(path) for path in options.image]
        if options.record is not None:
            self._recorder = Recorder(options.record)
        from spac.engine import Engine  # late: bad options do not wait for the library

        if options.escape:
            options.stop = [unescaped(text) for text in options.stop]
        talk = self._talk
        with interrupt.Interrupt(self._canceller), Engine(config, progress=talk.progress) as engine:
            talk.end_progress()
            talk.show_notes(engine)
            return self._generate(engine, prompt, images)

    # Input

    def _prompt(self, demo: Any) -> str:
        options = self.options
        if options.prompt is not None:
            prompt = as_text(options.prompt, "--prompt")
            return unescaped(prompt) if options.escape else prompt
        if options.file is not None and options.file != "-":
            return read_prompt(options.file)
        wait = None if options.file == "-" or demo is None else STDIN_PATIENCE_S
        text = "" if sys.stdin is None or (sys.stdin.isatty() and options.file is None) else _read_stdin(wait)
        if text:
            return text
        if demo is None or options.file == "-":
            raise InputError("no prompt: give --prompt TEXT, --file FILE, or pipe it to stdin")
        options.echo = True  # the user has not seen the prompt
        return str(demo.PROMPT)

    # Output

    def _generate(self, engine: Engine, prompt: str, images: Sequence[bytes]) -> int:
        options = self.options
        out = sys.stdout
        out.reconfigure(errors="replace")  # type: ignore[union-attr]
        limit = None if options.max_tokens < 0 else options.max_tokens
        seen = engine.image_prompt(prompt, images) if images else prompt
        self.generation = generation = engine.generate(
            seen, limit, stop=options.stop, recorder=self._recorder,
            # Progress would clear the echo's last line.
            progress=None if options.echo else self._talk.reads(engine),
        )  # fmt: skip
        code = 0
        try:
            if options.echo:
                out.write(prompt)
            for piece in generation:
                self._talk.end_progress()
                out.write(piece)
                out.flush()
            out.write("\n")
            out.flush()
        except BrokenPipeError:
            generation.cancel()
            code = broken_pipe()
        finally:
            self._talk.end_progress()
            if self._recorder is not None:
                self._recorder.write(generation.stats)
        try:
            engine.save()
        finally:
            self._talk.show_notes(engine)
            if generation.ended_by_context:
                self._talk.note(f"the text ends here: the context of {engine.context} tokens is full")
            self._report(generation.stats)
        return code or (INTERRUPTED if generation.reason == "cancelled" else 0)

    def _report(self, stats: RunStats) -> None:
        if self.options.stats_file is not None:
            write_atomically(Path(self.options.stats_file), stats.to_json().encode() + b"\n")
        if self.options.stats == "json":
            say(stats.to_json(), is_data=True)
        elif self.options.stats == "text":
            say(stats.summary())
        elif self.options.stats == "full":
            say(stats.table())

    def _canceller(self) -> Callable[[], None]:
        return self.generation.cancel if self.generation is not None else interrupt.leave


def unescaped(text: str) -> str:
    r"""Return `text` with its escape sequences replaced.

    These are \n, \r, \t, quotes, \\ and bytes such as \x41. Other backslashes stay.
    """

    def meant(match: re.Match[str]) -> str:
        return _MEANING.get(match[2]) or bytes.fromhex(match[1]).decode("utf-8", "surrogateescape")

    # Bytes that form a character in UTF-8 become that character. Others stay bytes.
    return _ESCAPE.sub(meant, text).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _read_stdin(patience_s: float | None) -> str:
    """Return all of stdin; "" if nothing comes within `patience_s` seconds.

    Nothing comes from an open pipe that nobody writes to.
    """
    is_pipe = stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
    if is_pipe and patience_s is not None and not select.select([sys.stdin], [], [], patience_s)[0]:
        return ""
    return as_text(sys.stdin.buffer.read(), "stdin")


if __name__ == "__main__":
    sys.exit(main())
