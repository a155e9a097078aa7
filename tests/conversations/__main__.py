"""`python -m tests.conversations --rules 10000 --door llama` applies many rules, and prints what differs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["SPAC_STATE"] = "off"

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.conversations.doors import DOORS, FRESH, setups_of
from tests.conversations.machine import Enough, machine_of
from tests.conversations.setups import SETUPS, Models
from tests.forked import Programs
from tests.serve.conftest import Server


def main() -> int:
    """Run the doors that were asked for. Return 1 if an answer differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conversations", description=__doc__)
    parser.add_argument("--rules", type=int, default=1000, help="rules for each door (default: %(default)s)")
    parser.add_argument("--door", action="append", choices=DOORS, help="a door (default: all)")
    parser.add_argument("--setup", action="append", choices=SETUPS, help="a setup (default: all of the door)")
    parser.add_argument("--seconds", type=float, default=1e9, help="the most seconds for each door")
    parser.add_argument("--steps", type=int, default=40, help="rules of an example, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", action="store_true", help="end at a difference, made small")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    n_different = 0
    with tempfile.TemporaryDirectory() as folder, Programs() as programs:
        Server.programs = programs
        models = Models(Path(folder))
        for name in options.door or DOORS:
            n_different += run(name, models, options)
    return 1 if n_different else 0


def run(name: str, models: Models, options: argparse.Namespace) -> int:
    """Run one door, print its counts, and return the number of differences."""
    setups = [models.setup(each) for each in options.setup or setups_of(name)]
    machine = machine_of(DOORS[name], FRESH[name], setups, stops=options.shrink)
    tally, started, at = machine.tally, time.monotonic(), options.seed
    tally.most_rules, tally.until = options.rules, started + options.seconds
    phases = (Phase.generate, Phase.shrink) if options.shrink else (Phase.generate,)
    try:
        while True:
            run_state_machine_as_test(
                seed(at)(machine),
                settings=settings(
                    max_examples=20, stateful_step_count=options.steps, deadline=None, database=None,
                    phases=phases, suppress_health_check=list(HealthCheck),
                ),
            )  # fmt: skip
            at += 1
    except (Enough, Flaky):
        if not tally.is_over:
            raise
    finally:
        for told in (*tally.close, *tally.differences):
            print(f"\n{told}\n")
        print(
            f"{name}: {tally.n_rules} rules, {tally.n_answers} answers compared with {machine.fresh.n_made} "
            f"fresh ones, {len(tally.differences)} differences, {len(tally.close)} that rounding decides, "
            f"{time.monotonic() - started:.0f} s, seeds {options.seed} to {at}",
            flush=True,
        )
    return len(tally.differences)


if __name__ == "__main__":
    sys.exit(main())
