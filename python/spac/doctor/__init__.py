"""Checks of this machine, for `spac doctor`: what is off, and why.

The exit code is 0 if models can run here, 1 if something prevents that, and 2 for a bad option or target. A
finding that only slows models down, or a missing extra, does not change the exit code.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spac.cli.options import Parser, add_config, add_hub, draft_of, target_of
from spac.cli.program import Talk, add_talk, guarded
from spac.config import EngineConfig
from spac.config.values import VramLimit
from spac.doctor import devices, host
from spac.doctor.measure import costs
from spac.doctor.outlook import outlook
from spac.doctor.trial import Finding, State, Trial
from spac.doctor.verdict import verdict
from spac.errors import InputError, SpacError, one_line
from spac.machine.terminal import wrapped


def examine(
    target: Path | None = None,
    vram_limit: VramLimit | None = None,
    self_test: bool | None = None,
    mmproj: Path | None = None,
    measured: Callable[[], Iterator[Finding]] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of all checks, in order. A check that fails does not stop the later ones.

    With a `target`, findings say how much of the model fits on the device within `vram_limit`, beside the
    projector `mmproj`, and what a run does. `self_test` says if every mechanism is tried; None
    tries them on GPUs, not on the simulated device. `measured` is a last check.
    """
    room = functools.partial(devices.vram, target, vram_limit, mmproj)
    trial = Trial(self_test)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", host.python), ("library", host.library),
        ("llama-cpp-python", host.llama_cpp_python),
        ("cpu", functools.partial(host.cpu, target)),
        ("gpu", devices.gpu), ("images", functools.partial(devices.images, target, mmproj)), ("vram", room),
        ("memory", functools.partial(host.memory, target)),
        ("folders", host.folders), ("config", host.config),
        ("extras", host.extras),
        ("run", functools.partial(outlook, target, vram_limit, mmproj)),
        ("self-test", trial.findings), ("demo", lambda: trial.heeded(_demo)),
    ]  # fmt: skip
    if measured is not None:
        checks.append(("costs", lambda: trial.heeded(measured, "costs")))
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that fails is a finding too
            yield Finding(name, "fault", "-", one_line(str(error)) or type(error).__name__)


def _demo() -> Iterator[Finding]:
    """Load the bundled pair with its split, and generate a few tokens. This check covers the others."""
    from spac import demo

    if not (demo.TARGET.is_file() and demo.DRAFT.is_file()):
        yield Finding("demo", "off", "none", "this installation has no demo pair")
        return
    from spac.config import EngineConfig, SamplingConfig
    from spac.engine import Engine

    config = EngineConfig(demo.TARGET, demo.DRAFT, ctx=512, state="off", sampling=SamplingConfig(temp=0))
    try:
        with Engine(replace(config, keeps_split="the split is tried")) as engine:
            generation = engine.generate(demo.PROMPT, max_tokens=16)
            text = "".join(generation)
            stats = generation.stats
            if engine.experts is not None and engine.device is not None:
                shared = engine.device.shares_host_memory
                yield Finding("expert-memory", *_expert_memory(engine.experts.host_memory, shared))
    except SpacError as error:
        yield Finding("demo", "fault", "does not run", str(error))
        return
    speed = f"{stats.tokens_per_second:.0f} tokens/s" if stats.tokens_per_second else "no speed"
    state: State = "ok" if text and stats.generated_tokens else "fault"
    hits = f", hit rate {stats.hit_rate:.0%}" if stats.hit_rate is not None else ""
    found = f"{stats.generated_tokens} tokens at {speed} on {stats.device}{hits}"
    yield Finding("demo", state, found, "" if state == "ok" else "it generates nothing")


def _expert_memory(way: str, shares_host_memory: bool) -> tuple[State, str, str]:
    if shares_host_memory or way.startswith("pinned"):
        return "ok", way, ""
    if way == "paged":
        return "off", way, "memory does not hold all experts: those that are not there are read from the file"
    why = "the model's mapping is not pinned, or in part: uploads are slower (SPAC_FORM, SPAC_PIN_LIMIT)"
    return "off", way, why


def make_parser() -> Parser:
    """Return the parser with the options of `spac doctor`."""
    parser = Parser(
        prog="spac doctor", description="Tell what was found on this machine, and what is off and why."
    )
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    parser.add_argument("--target", "--model", "-m", metavar="FILE", type=Path,
                        help="also tell how much of this model would fit, and what a run does")  # fmt: skip
    parser.add_argument("--self-test", action=argparse.BooleanOptionalAction, default=None,
                        help="try every mechanism of the split in a process of its own "
                             "(default: on GPUs, not on the simulated device)")  # fmt: skip
    parser.add_argument("--measure", action="store_true",
                        help="also measure what experts, transfers, drafts and verifications of --target "
                             "cost (default: of the bundled demo pair)")  # fmt: skip
    add_config(parser, EngineConfig, ("draft", "vram_limit", "mmproj"))
    add_talk(parser)
    add_hub(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, print their findings, and return 1 if something keeps models from running."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _examine_and_report(options))


def _examine_and_report(options: argparse.Namespace) -> int:
    from spac.model.gguf.check import check_model, check_projector

    n_embd = None
    if (target := target_of(options)) is not None:
        n_embd = check_model(target).n_embd  # one line for a wrong path, and not a fault of every check
    if (mmproj := getattr(options, "mmproj", None)) is not None:
        check_projector(mmproj, n_embd)
    limit, draft = getattr(options, "vram_limit", None), draft_of(options)
    if draft is not None and not (options.measure and target is not None):
        raise InputError("--draft goes with --measure and --target: it is measured with its target")
    measured = functools.partial(costs, target, draft, limit) if options.measure else None
    talk, findings = Talk(options.quiet), list[Finding]()
    for finding in examine(target, limit, options.self_test, mmproj, measured):
        findings.append(finding)
        talk.show(f"checked: {finding.name}")
    talk.end_progress()
    healthy = all(finding.state != "fault" for finding in findings)
    if options.json:
        report: dict[str, Any] = {
            "schema": 1,
            "healthy": healthy,
            "verdict": verdict(findings),
            "findings": [asdict(one) for one in findings],
        }
        print(json.dumps(report))
    else:
        print(wrapped("\n".join(_lines(findings)), sys.stdout))
    return 0 if healthy else 1


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    yield verdict(findings)
    yield ""
    for finding in findings:
        mark = {"ok": "  ", "off": "- ", "fault": "! "}[finding.state]
        yield f"{mark}{finding.name:<20}{finding.found}"
        if finding.why:
            yield f"{'':<22}{finding.why}"
