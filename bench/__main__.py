"""Run a benchmark: `python -m bench NAME [options]`. Without a name, list the questions."""

from __future__ import annotations

import argparse
import importlib
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.processes import PeerError

QUESTIONS = {
    "compare": ("compare.comparison", "How fast are spac, llama.cpp and other servers, at equal VRAM?"),
    "schedulers": ("schedulers.judge", "Which scheduler is best on traces of real routing?"),
    "drafts": ("drafts", "What do drafts yield, and which experts do their windows use?"),
    "policy": ("policy", "What does the policy cost per step, by the number of experts?"),
    "expert_rows": ("expert_rows", "What does an expert that several tokens use cost the CPU?"),
    "cpu_lane": ("cpu_lane", "How fast is the CPU alone, beside llama.cpp and other engines' llama-bench?"),
    "parallel_servers": ("parallel_servers", "How do clients at once fare, beside llama.cpp's own server?"),
    "hostile": ("hostile", "How late are answers beside clients whose grammars explode?"),
    "perplexity": (
        "perplexity",
        "Is the perplexity of real text that of llama.cpp, in every form of the split?",
    ),
    "mtp_sensor": ("mtp_sensor", "Does a prediction layer foretell the experts of the next token?"),
    "cards": ("cards", "What did users' cards give? (the table of docs/cards.md)"),
    "gpu": ("gpu_suite.visit", "Does everything work on a card, and how fast is it there?"),
    "pack": ("gpu_suite.pack", "What does a machine with a card and without a network need?"),
    "smoke": ("gpu_suite.smoke", "Are logits right on the card, in every form of the split?"),
    "patches": ("gpu_suite.patches", "Are the patched kernels right on the card, for all types?"),
    "full_card": ("gpu_suite.full_card", "Is a long prompt right where the card is nearly full?"),
    "probes": ("gpu_suite.probes", "Does the driver do what spac relies on?"),
}
"""The module and the question of each name. A module has `options`, which adds its options to a parser, and
`run`, which takes the arguments and may return an exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code. Bad input gets one line on stderr."""
    name, *words = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("-h", "--help"):
        print(f"{__doc__}\n")
        print("\n".join(f"  {each:<18}{question}" for each, (_, question) in QUESTIONS.items()))
        return 0
    if name not in QUESTIONS:
        print(f"error: no benchmark is called '{name}': `python -m bench` lists them", file=sys.stderr)
        return 2
    module = importlib.import_module(f"bench.{QUESTIONS[name][0]}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    module.options(parser)
    args = parser.parse_args(words)
    args.command = shlex.join(["python", "-m", "bench", name, *words])
    try:
        return int(module.run(args) or 0)
    except Exception as error:
        from spac.errors import SpacError  # late: it must not come before the unpatched library

        if not isinstance(error, (ValueError, OSError, PeerError, SpacError)):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
    # Servers and other processes of a benchmark end with it, even if it is stopped from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
