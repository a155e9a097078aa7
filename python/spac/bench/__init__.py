"""The program that finds the fastest settings: `spac bench --target model.gguf --draft draft.gguf`.

It measures schedulers, numbers of slots and draft lengths in every combination, in turns, beside the CPU
alone. Exit codes are those of `spac.run`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import __version__
from spac.bench.candidates import ROOFLINE, Candidate, can_draft, combinations, default_lengths, parse_length
from spac.cli import interrupt
from spac.cli.options import Parser, add_engine, add_sampling, number, parsed, read_config
from spac.cli.program import INTERRUPTED, Talk, add_talk, as_text, guarded, models, read_prompt, write_out
from spac.config import COUNT, EngineConfig, Range, Slots
from spac.errors import InputError
from spac.machine.files import write_atomically
from spac.scheduler import SchedulerChoice, names
from spac.stats.words import counted

if TYPE_CHECKING:
    from spac.bench.measure import Measurement

SCHEDULERS = ("logistic", "lru", "moe-spac")
PROMPTS = (
    'def read_table(path):\n    """Read a CSV file into a list of dictionaries."""\n',
    "The main difference between a process and a thread is that",
    'class Queue:\n    """A first-in, first-out queue with a limit."""\n\n    def __init__(self, limit):\n',
)
"""The prompts that are continued where none is given: code and prose."""
SUBMIT_S = 600.0
"""The seconds that `--submit` takes, about."""
_VARIED = ("scheduler", "slots", "draft_length", "state")
_REPRODUCIBLE = {"temp": 0.0, "seed": 1}


def make_parser() -> Parser:
    """Return the parser of `spac.bench`'s options."""
    parser = Parser(
        prog="spac bench",
        description="Measure which settings are fastest on this machine: all combinations of the listed "
        "schedulers, slots and draft lengths, in turns, beside the CPU alone. Without --target, "
        "the bundled demo pair is measured.",
        like_llama_cpp=True,
    )
    parser.set_defaults(keeps_split="the split stays for the comparison")
    compared = parser.add_argument_group("compared")
    compared.add_argument(
        "--schedulers", "--scheduler", nargs="+", metavar="NAME[:OPTIONS]",
        type=parsed(SchedulerChoice.parse),
        help=f"of {', '.join(names())}; with options as in moe-spac:levels=8 "
        f"(default: {' '.join(SCHEDULERS)})",
    )  # fmt: skip
    compared.add_argument(
        "--slots", dest="slot_numbers", nargs="+", metavar="N|SHARE|auto", type=parsed(Slots.parse, "slots"),
        help=f"experts in slots on the GPU: {Slots.ACCEPTED} (default: {Slots()})".replace("%", "%%"),
    )  # fmt: skip
    compared.add_argument(
        "--draft-lengths", "--draft-length", nargs="+", metavar=f"N|{ROOFLINE}", type=parsed(parse_length),
        help=f"tokens drafted per step; {ROOFLINE}: chosen while it runs (default: 0 {ROOFLINE}, where there "
        "is something to draft with)",
    )  # fmt: skip
    compared.add_argument("--baseline", choices=("cpu", "none"), default="cpu",
                          help="the CPU alone, with the same drafts (default: %(default)s)")  # fmt: skip
    text = parser.add_argument_group("text")
    text.add_argument("--prompt", "-p", metavar="TEXT", action="append", default=[],
                      help="a text to continue; may be given several times")  # fmt: skip
    text.add_argument("--file", "-f", metavar="FILE", action="append", default=[],
                      help="read a prompt from a file; may be given several times")  # fmt: skip
    text.add_argument(
        "--max-tokens", "--predict", "--n-predict", "-n", metavar="N", default=64,
        type=number(int, Range(1, COUNT.high)),
        help="tokens to generate per prompt at most (default: %(default)s)",
    )  # fmt: skip
    text.add_argument("--repeat", metavar="N", default=3, type=number(int, Range(1, 1000)),
                      help="rounds through all settings (default: %(default)s)")  # fmt: skip
    own = [item.name for item in fields(EngineConfig) if item.name not in _VARIED]
    add_engine(parser, own)
    add_sampling(parser, **_REPRODUCIBLE)
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write all figures and texts as JSON; - is stdout, "
                        "and the table goes to stderr")  # fmt: skip
    output.add_argument(
        "--submit", metavar="FILE",
        help="instead, compare spac and llama.cpp at the same memory in about ten minutes, and write figures "
        "of this machine without prompts, paths and names of files, for the table of cards; - is stdout",
    )  # fmt: skip
    add_talk(output)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: Bench(options).run())


class Bench:
    """One run of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._talk = Talk(options.quiet)
        self._shares_cores = False

    def run(self) -> int:
        """Measure, report and return the exit code; raise InputError or OutOfMemoryError, with one line."""
        options = self.options
        target, draft, _ = models(options)
        if options.submit is not None:
            return self._submit(target)
        prompts = _prompts(options)
        base = read_config(options, target, draft, **_REPRODUCIBLE)
        from spac.engine.own_drafts import with_own_drafts
        from spac.model.gguf.check import check_model

        if base.draft is None:  # A draft model that is given is what shall be measured.
            base = with_own_drafts(base, check_model(Path(base.target)), [])
        candidates = self._candidates(base)
        # This import loads the library. Bad options are reported before that.
        from spac.bench.measure import Measurement, with_threads

        base, self._shares_cores = with_threads(base)
        measured = Measurement(base, candidates, prompts, options.max_tokens, options.repeat, self._talk)
        code = self._measure(measured)
        if any(measured.samples.values()):
            self._report(measured, interrupted=code != 0)
        return code

    def _submit(self, target: Path) -> int:
        """Compare spac and llama.cpp, and write what the user can send in."""
        options = self.options
        flags = {"schedulers": "schedulers", "slot_numbers": "slots", "draft_lengths": "draft-lengths",
                 "prompt": "prompt", "file": "file", "json": "json"}  # fmt: skip
        if given := [flag for name, flag in flags.items() if getattr(options, name)]:
            raise InputError(f"--submit measures everybody's settings: leave out --{given[0]}")
        base = read_config(options, target, None, **_REPRODUCIBLE, ignore_eos=True)
        from spac.bench.submission import Submission

        found = Submission(replace(base, keeps_split=""), list(PROMPTS), self._talk.note, SUBMIT_S).run()
        if (spread := found["ratio"]) is not None:
            self._talk.note(
                f"spac decodes {spread['median']:.2f} times as fast as llama.cpp at the same memory "
                f"({spread['least']:.2f} to {spread['most']:.2f})"
            )
        _write(options.submit, found, indent=1)
        if options.submit != "-":
            self._talk.note(
                f"{options.submit} has figures of this machine, and no prompt, no path and no file's name"
            )
        return 0

    def _candidates(self, base: EngineConfig) -> list[Candidate]:
        """Return the candidates, or raise InputError."""
        from spac.model.devices import choose_device
        from spac.model.gguf.check import check_model

        options = self.options
        if options.draft_lengths and any(n != 0 for n in options.draft_lengths) and not can_draft(base):
            raise InputError(
                "draft lengths need something to draft with: add --draft FILE, or an ngram --draft-type"
            )
        lengths = tuple(options.draft_lengths or default_lengths(base)) if can_draft(base) else (0,)
        info = check_model(base.target)
        if base.draft is not None and any(n != 0 for n in lengths):
            check_model(base.draft, "draft")
        on_cpu = choose_device(base.device) is None
        if (on_cpu or not info.is_moe) and (options.schedulers or options.slot_numbers):
            reason = "--device cpu (the default without a GPU) runs"
            if not on_cpu:
                reason = f"{info.path.name} has no experts and runs"
            raise InputError(f"{reason} without the split: leave out --schedulers and --slots")
        if on_cpu:
            base = replace(base, device="cpu")
        return combinations(
            base,
            options.schedulers or [SchedulerChoice(name) for name in SCHEDULERS],
            options.slot_numbers or [Slots()],
            lengths,
            splits=info.is_moe and not on_cpu,
            baseline=options.baseline == "cpu" and not on_cpu,
        )

    def _measure(self, measured: Measurement) -> int:
        try:
            with interrupt.Interrupt(measured.canceller):
                measured.run()
        except KeyboardInterrupt:
            self._talk.end_progress()
            self._talk.note("interrupted: this is what was measured until then")
            return INTERRUPTED
        return 0

    def _report(self, measured: Measurement, *, interrupted: bool) -> None:
        from spac.bench import figures

        file = self.options.json
        n_rounds = max(map(len, measured.samples.values()))
        rounds = (
            f"{counted(n_rounds, 'round')} of {counted(len(measured.prompts), 'prompt')}, "
            f"{measured.max_tokens} tokens each at most, with {counted(measured.base.threads, 'thread')} "
            "on the CPU in every setting"
        )
        text = list(figures.lines(figures.rows(measured.samples), rounds))
        if self._shares_cores:
            text.append("the simulated device is the CPU playing a GPU: its speeds tell nothing about a GPU")
        print("\n".join(text), file=sys.stderr if file == "-" else sys.stdout, flush=True)
        if file is not None:
            _write(file, figures.as_json(measured.samples, self._about(measured, interrupted)))

    def _about(self, measured: Measurement, interrupted: bool) -> dict[str, Any]:
        base = measured.base
        return {
            "version": __version__,
            "target": str(base.target),
            "draft": str(base.draft) if base.draft is not None else None,
            "device": base.device,
            "device_is_simulated": self._shares_cores,
            "prompts": list(measured.prompts),
            "max_tokens": measured.max_tokens,
            "repeat": measured.repeat,
            "threads": base.threads,
            "interrupted": interrupted,
            "left_out": {each.label: why for each, why in measured.left_out.items()},
        }


def _write(file: str, found: dict[str, Any], indent: int | None = None) -> None:
    """Write figures as JSON; "-" is stdout."""
    line = json.dumps(found, indent=indent).encode() + b"\n"
    if file == "-":
        write_out(line)
    else:
        write_atomically(Path(file), line)


def _prompts(options: argparse.Namespace) -> list[str]:
    """Return the prompts; raise InputError for one that is empty, unreadable or not UTF-8."""
    prompts = [as_text(text, "--prompt") for text in options.prompt]
    prompts += [read_prompt(name) for name in options.file]
    if not all(prompts):
        raise InputError("a prompt is empty: give at least one character of text")
    return prompts or list(PROMPTS)
