"""Repeat SP-MoE's tables and figures with a pair whose draft resembles its target.

    python -m bench.sp_moe record DIR --target FILE --draft FILE [--prompts FOLDER] [--lengths 1 2 4 8]
    python -m bench.sp_moe table DIR [--steps 160] [--out FILE]
    python -m bench.sp_moe live DIR --target FILE --draft FILE [--prompts FOLDER] [--out FILE]

`record` runs the pair on the simulated device and keeps the demand of every verification, with what the
target's routers choose for the draft's states: a file for each draft length, and at draft length 1 for each
set of prompts. It also compares the states of both models, layer by layer. Without --prompts, it writes texts
that begin with single tokens. `table` replays schedulers over the recordings on modelled machines
(`machines`), with copies that start layer by layer while the draft is made. `live` runs the schedulers on the
simulated device, whose link is as fast as --link says. With --repeat it also times each cutoff layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.program import write_page
from bench.sp_moe.live import live_page
from bench.sp_moe.pages import page
from bench.sp_moe.recordings import record


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sp_moe", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(required=True)
    for name, action in (("record", record), ("table", page), ("live", live_page)):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--out", type=Path, help="the page, as Markdown")
        command.set_defaults(action=action)
        if name == "table":
            command.add_argument("--steps", type=int, default=160, help="of each recording, at most")
            continue
        command.add_argument("--target", type=Path, required=True)
        command.add_argument("--draft", type=Path, required=True)
        command.add_argument("--prompts", type=Path, help="folder of .jsonl files, a set each")
        command.add_argument("--number", type=int, default=2, help="prompts of each set")
        command.add_argument("--tokens", type=int, default=64, help="tokens of each text")
        command.add_argument("--lengths", type=int, nargs="+", default=(1, 2, 4, 8), help="draft lengths")
        command.add_argument("--threads", type=int, default=1)
        if name == "live":
            command.add_argument("--link", type=float, default=100.0, help="of the simulated device, MB/s")
            command.add_argument("--slots", default="25%")
            command.add_argument("--miss", default="cpu", choices=("cpu", "load"), help="as in spac run")
            command.add_argument("--repeat", type=int, default=0, help="runs of each cutoff layer; 0: none")
    return write_page(parser, "bench.sp_moe", argv)


if __name__ == "__main__":
    sys.exit(main())
