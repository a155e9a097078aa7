"""Compare the governor with the best fixed draft length: `python -m bench.governor`.

    python -m bench.governor record FOLDER --prompts FOLDER [--sets NAME ...] [--number N] [--temp T]
    python -m bench.governor compare FOLDER [--json FILE]

`record` runs every prompt of a set (a file of JSON objects with "turns", one a line) under the governor and
at every fixed draft length, in turn, in one process and one engine. It keeps the time and the accepted tokens
of every step. Each set has one file, so that the program can be stopped and continued. At the start of each
set, the governor knows only the costs that earlier runs have measured. With one seed per prompt the text is
the same at every length, except for near-ties.

`compare` prints, per set, the throughput against the best of the fixed lengths. The live figure is the median
over the prompts with its 95 % bootstrap interval. The exact figure comes from a replay: a governor decides
anew on the recorded steps, without the noise between two runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.governor import live, replay
from bench.provenance import about
from spac.errors import SpacError

DEMO = Path(__file__).resolve().parents[2] / "python" / "spac" / "demo"


def compare(given: argparse.Namespace) -> None:
    """Print the tables, and write them where that is asked for."""
    sets = live.load(given.folder)
    rows = {
        name: {"live": live.against_fixed(data), "replay": replay.against_fixed(data)}
        for name, data in sets.items()
    }
    print("live: tokens/s at fixed lengths, then governor / best fixed, median over prompts [95 % interval]")
    for name, row in rows.items():
        measured = row["live"]
        rates = " ".join(f"{k}:{rate:.0f}" for k, rate in measured["tokens_per_second"].items())
        ratio, low, high = measured["ratio"]
        verdict = "met" if high >= 0.97 else "NOT met"
        print(
            f"{name:10} {rates:70} best {measured['best']:>2}  {ratio:.3f} [{low:.3f}, {high:.3f}] {verdict}"
        )
    print("replay of the recorded steps: lengths chosen, then governor / best fixed, per prompt and of all")
    for name, row in rows.items():
        decided = row["replay"]
        chosen = " ".join(f"{k}:{share:.0%}" for k, share in decided["chosen"].items())
        ratio, low, high = decided["ratio"]
        print(
            f"{name:10} {chosen:70} best {decided['best']:>2}  {ratio:.3f} [{low:.3f}, {high:.3f}] "
            f"{'met' if high >= 0.97 else 'NOT met'}, of all {decided['ratio_of_sums']:.3f}"
        )
    if given.json:
        given.json.write_text(json.dumps({**about("bench.governor"), "sets": rows}, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the commands and their options."""
    result = argparse.ArgumentParser(prog="python -m bench.governor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = result.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--prompts", type=Path, required=True)
    recording.add_argument("--sets", nargs="+", help="names of the files (default: all)")
    recording.add_argument("--target", type=Path, default=DEMO / "target.gguf")
    recording.add_argument("--draft", type=Path, default=DEMO / "draft.gguf")
    recording.add_argument("--device", default="simulated")
    recording.add_argument("--number", type=int, default=12, help="prompts of each set")
    recording.add_argument("--tokens", type=int, default=192, help="tokens for each prompt")
    recording.add_argument("--rounds", type=int, default=2, help="runs of every prompt at every length")
    recording.add_argument("--temp", type=float, default=0.8)
    recording.set_defaults(run=lambda given: live.record(given, about("bench.governor")))
    comparing = commands.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("--json", type=Path, help="write the figures here too")
    comparing.set_defaults(run=compare)
    return result


def main() -> None:
    given = parser().parse_args()
    try:
        given.run(given)
    except SpacError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
