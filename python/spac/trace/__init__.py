"""Traces of routing: `spac trace export RECORDING.npz TRACE.npz`.

A trace has the experts of every token (docs/schedulers.md has the format). A run writes one with `--trace`.
This program makes one of a recording that `spac run --record FILE.npz` or `bench.replay_demand` wrote. The
exit codes are those of `spac.run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spac.cli.options import Parser
from spac.cli.program import add_talk, guarded, say
from spac.errors import InputError


def make_parser() -> Parser:
    """Return the parser of `spac trace`'s options."""
    parser = Parser(
        prog="spac trace",
        description="Write the experts of every token of a recording as a trace, for bench.schedulers.",
    )
    parser.add_argument("action", choices=("export",), help="what to do: export writes a trace")
    parser.add_argument(
        "recording", metavar="RECORDING", help="a recording of `spac run --record FILE.npz`, or a trace"
    )
    parser.add_argument("output", metavar="TRACE", help="the trace, a .npz archive")
    add_talk(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _export(options))


def _export(options: argparse.Namespace) -> int:
    from spac.scheduler.trace import Trace

    if Path(options.output).suffix != ".npz":
        raise InputError(f"{options.output}: a trace is a .npz file; give a name that ends so")
    trace = Trace.load(Path(options.recording))
    trace.save(Path(options.output))
    if not options.quiet:
        n_token, n_layer, _ = trace.experts.shape
        say(
            f"spac: {options.output}: {n_token} tokens in {len(trace.seq_len)} sequences, "
            f"{n_layer} layers of {trace.n_expert} experts"
        )
    return 0
