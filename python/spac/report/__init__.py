"""One HTML page about a run: `spac report run.npz`.

The program reads what `spac run --record run.npz` recorded. The page is one file that needs no network. It
goes to `run.html` beside the recording, or to --output. With --timeline, a timeline is written too. The exit
codes are those of `spac.run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spac.cli.options import Parser
from spac.cli.program import add_talk, files, guarded, say, write_out
from spac.machine.files import check_outputs, write_atomically
from spac.report.figures import read
from spac.report.page import page
from spac.report.timeline import timeline


def make_parser() -> Parser:
    """Return the parser of `spac.report`'s options."""
    parser = Parser(
        prog="spac report",
        description="Show what a run did as one HTML page, from a recording of `spac run --record FILE.npz`.",
    )
    parser.add_argument("recording", metavar="RECORDING", help="the recording; - is stdin")
    parser.add_argument(
        "--output", "-o", metavar="FILE",
        help="the page; - is stdout (default: the recording's name with .html, stdout for stdin)",
    )  # fmt: skip
    parser.add_argument(
        "--timeline", metavar="FILE", help="write what ran when as a trace for ui.perfetto.dev too"
    )
    add_talk(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    recording = read(options.recording)
    data = page(recording).encode()
    if options.output is None:
        name = options.recording
        options.output = "-" if name == "-" else str(Path(name).with_suffix(".html"))
        check_outputs(*files(options))
    if options.output == "-":
        write_out(data)
    else:
        write_atomically(Path(options.output), data)
        if not options.quiet:
            say(f"spac: {options.output}")
    if options.timeline is not None:
        write_atomically(Path(options.timeline), timeline(recording))
        if not options.quiet:
            dropped = recording.content["dropped"]
            lost = f": the last {dropped} spans are missing, for the recording was full" if dropped else ""
            say(f"spac: {options.timeline}{lost}")
    return 0
