"""Compare spac, llama.cpp and other servers side by side: same files, prompts and draft length, equal VRAM.

Every engine runs in a process of its own. Finished cells are kept in OUT/cells. A run that has used up its
seconds (exit code 3) is called again in the same way. OUT gets compare.md and compare.json. Exit code
1 means that the page names cells that could not be run, or results that must not be (perplexities that
differ). bench/compare/README.md has the protocol.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.compare import likeness, tables
from bench.compare.cells import Cell, grid, key_of, layer_bytes, layers_on_cpu, run_cell
from bench.compare.job import FOLLOW_UP_ROOM, NO_GPU, Job, Result
from bench.compare.rivals import NAMES, Engine, engines, peer
from bench.processes import TOOK_TOO_LONG, PeerError
from spac.config import Slots
from spac.errors import InputError
from spac.machine.cpu import default_threads, physical_cores
from spac.model.gguf.check import check_model
from spac.model.gguf.header import read_header
from tools.compare import reference_library

if TYPE_CHECKING:
    from spac.model.c_api import Model

UNFINISHED = 3
OUT_OF_TIME = "out of time"
LEAST_S = 20  # seconds: nothing begins with fewer left
MOST_S = 150  # seconds: a cell that takes longer hangs
FIRST = 3  # cells before perplexities are measured
SWEEP = 32  # tokens that are decoded with each number of threads
VRAM_NOISE = 64 << 20
NOT_TUNED = (
    "not tuned: the VRAM of spac, or of llama.cpp with all experts on the CPU, is not known (NVML tells it)"
)


class NotTunedError(InputError):
    """A cell needs a figure that another cell has to measure first."""


class Comparison:
    """One run over the grid. Results of earlier runs are read from the cells' folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raise InputError for files and settings that cannot be used."""
        self.args = args
        self.cells: Path = args.out / "cells"
        self.cells.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + args.seconds
        reference = args.reference or reference_library()
        if reference is None:
            raise InputError(
                "no unpatched library: build with -DSPAC_BUILD_REFERENCE=ON, or give --reference FOLDER"
            )
        self.reference = Path(reference)
        for path, role in ((args.target, "target"), (args.draft, "draft")):
            if path is not None:
                check_model(path, role)
        self.not_run: list[str] = []
        self.on_gpu = args.device.upper().startswith("CUDA")
        self.peers = list(self._peers())
        rows = [row for row in engines(args.schedulers, self.peers) if args.draft or not row.speculates]
        rows = [row for row in rows if self.on_gpu or not row.no_host]
        if args.only:  # peers that are named run, whatever --only says
            rows = [row for row in rows if row.command or any(text in row.name for text in args.only)]
        self.grid = list(grid(rows, args.budgets, args.contexts))
        self.sizes = layer_bytes(args.target)
        self.results: dict[str, Result] = {}
        self.again: dict[str, Result] = {}  # the first pair, run again at the end
        self.n_cpu_moe: dict[str, int | None] = {}
        if not args.threads:  # spac's default beside that device, for both sides
            args.threads = [default_threads(physical_cores(), gpu=self.on_gpu)]
        self.speeds: dict[str, dict[int, float]] = {}  # tokens/s by side and number of threads
        self._longest_s = 0.0
        self.tried: set[str] = set()  # measured once, whether it succeeds or not
        self.prompts = {n: self._make_prompts(n) for n in {*args.contexts, likeness.TOKENS}}

    def device(self, kind: str) -> str:
        """Return the device of that side: the simulated device computes on the CPU, and llama.cpp runs
        without it."""
        return "cpu" if kind != "spac" and self.args.device.lower() in NO_GPU else self.args.device

    def threads(self, side: str) -> int:
        """Return the fastest number of threads of a side; of equal ones the smallest, else the first."""
        found = self.speeds.get(side) or {self.args.threads[0]: 0.0}
        return min(found, key=lambda n: (-found[n], n))

    def _peers(self) -> Iterator[Engine]:
        """Yield the rows of --peer. An option that is no valid peer is noted as not run."""
        taken = {row.name for row in engines(self.args.schedulers)}
        for text in self.args.peer:
            try:
                engine = peer(text)
                if engine.name in taken:
                    raise PeerError("another row has this name")
                if engine.speculates and self.args.draft is None:
                    raise PeerError("its command has {draft}: give --draft FILE")
            except PeerError as error:
                self.not_run.append(f"peer {text.partition('=')[0].strip()}: {error}")
                print(self.not_run[-1], file=sys.stderr, flush=True)
                continue
            taken.add(engine.name)
            yield engine

    @cached_property
    def _vocabulary(self) -> Model:
        from spac.model.c_api import Model

        return Model(self.args.target, (), {"vocab_only": True})

    def text_of(self, tokens: list[int]) -> str:
        """Return tokens as the text that a server answers with."""
        return b"".join(map(self._vocabulary.piece, tokens)).decode("utf-8", "replace")

    def _make_prompts(self, n: int) -> list[list[int]]:
        """Return prompts of `n` tokens: stretches of a twin's chain, or of --text."""
        count = self.args.texts
        chain = read_header(self.args.target).metadata.get("twin.chain")
        if isinstance(chain, int) and self.args.text is None:
            return [[(i * chain // count + j) % chain for j in range(n)] for i in range(count)]
        if self.args.text is None:
            raise InputError(f"{self.args.target} is no twin: give --text FILE to take prompts from")
        tokens = self._vocabulary.tokenize(self.args.text.read_text()).tolist()
        if len(tokens) < count * n:
            raise InputError(f"{self.args.text}: {len(tokens)} tokens are less than {count} prompts of {n}")
        return [tokens[i * n : (i + 1) * n] for i in range(count)]

    def job(self, cell: Cell) -> Job:
        """Return the cell's job. Raise InputError where a cell that it needs has not run."""
        args, engine = self.args, cell.engine
        n_cpu_moe = self._tuned(cell) if engine.tuned else len(self.sizes) if engine.kind != "spac" else None
        prompts = self.prompts[cell.context]
        return Job(
            kind=engine.kind, target=str(args.target), prompts=prompts, n_predict=args.tokens,
            ctx=cell.context + args.tokens + FOLLOW_UP_ROOM + 64,
            threads=self.threads(engine.side) if engine.has_threads else 0, device=self.device(engine.kind),
            draft=str(args.draft) if engine.speculates else None,
            draft_length=(engine.draft_length or args.draft_length) if engine.speculates else 0,
            n_cpu_moe=n_cpu_moe, slots=cell.budget, scheduler=engine.scheduler or "lru",
            governor=engine.governor, lookahead=engine.lookahead, no_host=engine.no_host,
            command=engine.command, texts=[self.text_of(each) for each in prompts] if engine.command else [],
        )  # fmt: skip

    def _vram(self, cell: Cell, kind: str, speculates: bool | None = None) -> int | None:
        """Return the most VRAM that engines of this kind took on the cell's context: spac's on its budget,
        llama.cpp's with all experts on the CPU. Return None where it is not known."""
        found = []
        for other in self.grid:
            engine, result = other.engine, self.results.get(other.key)
            if result is None or result.peak_vram is None or other.context != cell.context or engine.tuned:
                continue
            same_budget = kind != "spac" or other.budget == cell.budget
            if engine.kind == kind and same_budget and speculates in (None, engine.speculates):
                found.append(result.peak_vram)
        return max(found, default=None)

    def _in_slots(self, budget: str) -> int:
        """Return the N of --n-cpu-moe with which as many experts are on the device as spac has slots."""
        return layers_on_cpu(self.sizes, (Slots.parse(budget).share or 0.0) * sum(self.sizes))

    def _tuned(self, cell: Cell) -> int:
        """Return the N of --n-cpu-moe: the layers that fit into the most VRAM that spac took on this budget,
        or, where VRAM is not measured, into its slots."""
        if not self.on_gpu:
            return self._in_slots(cell.budget)
        taken, bare = self._vram(cell, "spac"), self._vram(cell, "llama.cpp", cell.engine.speculates)
        if taken is None or bare is None:
            raise NotTunedError(NOT_TUNED)
        return layers_on_cpu(self.sizes, taken - bare)

    def run(self) -> None:
        """Run the cells that are not done, as far as time allows: the deciding ones, perplexities, all
        others.

        The first pair is run again at the end. Raise InputError where nothing would be measured warm.
        """
        if self.args.texts < 2:
            raise InputError("--texts 1: the first prompt is a warm-up, and figures are of those after it")
        self._sweep()
        # Cells that failed in an earlier call run again, after all others.
        failed = {cell for cell in self.grid if self.failed(cell.key)}
        waiting: list[Cell] = []
        for i, cell in enumerate(sorted(self.grid, key=failed.__contains__)):
            if i == FIRST:
                self.likelihoods()
            if self.deadline - time.monotonic() < 3 * self._least_s:  # or only the last call does it
                self._repeat()
            waiting = self._attempt([cell, *waiting])
        self.not_run += [f"{cell.key}: {NOT_TUNED}" for cell in waiting]
        self._repeat()

    def _sweep(self) -> None:
        """Try each number of threads with each side that has rows, on one prompt of the shortest context,
        on the first budget, without a draft but a peer's. With one number there is nothing to measure."""
        sides: dict[str, Engine] = {}
        for cell in self.grid:
            if cell.engine.has_threads:
                sides.setdefault(cell.engine.side, cell.engine)
        context = min(self.args.contexts)
        for side, engine in sides.items() if len(self.args.threads) > 1 else ():
            engine = engine if engine.command else Engine(side, side, scheduler=self.args.schedulers[0])
            job = self.job(Cell(replace(engine, tuned=False), self.args.budgets[0], context))
            on_cpu = None if side == "spac" else self._in_slots(self.args.budgets[0])
            job = replace(
                job, prompts=job.prompts[:1] * 4, texts=job.texts[:1] * 4, n_predict=SWEEP,
                ctx=context + SWEEP + 64, n_cpu_moe=on_cpu,
            )  # fmt: skip
            for n in self.args.threads:
                result = self.do(f"threads-{side}-{n}", replace(job, threads=n))
                if result and result.error:
                    self.not_run.append(f"{key_of(f'threads-{side}-{n}')}: {result.error}")
                elif result:
                    speed = median(each.decode_speed for each in result.warm)
                    self.speeds.setdefault(side, {})[n] = speed

    def _kept(self, key: str, command: str = "") -> Result | None:
        """Return the result of an earlier call, if it belongs to this command ("" except for peers)."""
        path = self.cells / f"{key}.json"
        if not path.is_file() or (command and Job.read(path.with_suffix(".job.json")).command != command):
            return None
        return Result.read(path)

    def failed(self, key: str) -> bool:
        """Return True if an earlier run under this key failed."""
        kept = self._kept(key)
        return kept is not None and bool(kept.error)

    def do(self, name: str, job: Job, note: str = "", *, anew: bool = False) -> Result | None:
        """Return a job's result: that of an earlier call, or, with `anew` or without one, that of a run.

        Return None, and note it, where there is no time.
        """
        key = key_of(name)
        if not anew and (kept := self._kept(key, job.command)):
            return kept
        begun = time.monotonic()
        left = self.deadline - begun
        if left >= self._least_s:
            print(f"{key}{note} …", file=sys.stderr, flush=True)
            ours = job.n_cpu_moe is None
            result = run_cell(job, self.cells, key, None if ours else self.reference, min(left, MOST_S))
            if not result.error:
                self._longest_s = max(self._longest_s, time.monotonic() - begun)
            if left >= MOST_S or not result.error.startswith(TOOK_TOO_LONG):
                return result
            (self.cells / f"{key}.json").unlink()  # the job is not at fault
        if (line := f"{key}: {OUT_OF_TIME}") not in self.not_run:
            self.not_run.append(line)
        return None

    def _attempt(self, cells: list[Cell]) -> list[Cell]:
        """Run cells. Return those that are tuned to cells which have not run."""
        waiting = []
        for cell in cells:
            try:
                self._run(cell)
            except NotTunedError:
                waiting.append(cell)
            except InputError as error:
                self.not_run.append(f"{cell.key}: {error}")
        return waiting

    def _repeat(self) -> None:
        """Run the first pair again, which shows how far apart two equal cells are: spac's first cell, and
        llama.cpp's first tuned one. Do nothing without both, or without time for them."""
        ours = [cell.key for cell in self.grid if cell.engine.kind == "spac"][:1]
        theirs = [cell.key for cell in self.grid if cell.engine.tuned][:1]
        if self.args.brief or not ours or not theirs or not {*ours, *theirs} <= set(self.results):
            return
        for key in ours + theirs:
            if self._kept(f"{key}-again") or self.deadline - time.monotonic() >= self._least_s:
                done = self.do(f"{key}-again", Job.read(self.cells / f"{key}.job.json"))
                if done and not done.error:
                    self.again[key] = done

    @property
    def _least_s(self) -> float:
        """Return the seconds that have to be left to begin another cell."""
        return max(LEAST_S, min(1.2 * self._longest_s, MOST_S / 2))

    def _run(self, cell: Cell) -> None:
        kept = self._kept(cell.key, cell.engine.command)
        if kept and not kept.error:
            self.results[cell.key] = kept
            self.n_cpu_moe[cell.key] = Job.read(self.cells / f"{cell.key}.job.json").n_cpu_moe
            return
        job = self.job(cell)
        while True:
            note = f", --n-cpu-moe {job.n_cpu_moe}" if cell.engine.tuned else ""
            result = self.do(cell.key, job, note, anew=True)
            if result is None:
                return
            if not (cell.engine.tuned and self._is_over(cell, result)) or job.n_cpu_moe == len(self.sizes):
                break
            (self.cells / f"{cell.key}.json").unlink(missing_ok=True)
            job = replace(job, n_cpu_moe=(job.n_cpu_moe or 0) + 1)
        self.n_cpu_moe[cell.key] = job.n_cpu_moe
        if result.error:
            self.not_run.append(f"{cell.key}: {result.error}")
        else:
            self.results[cell.key] = result

    def _is_over(self, cell: Cell, result: Result) -> bool:
        """Return True if llama.cpp took more VRAM than spac had, by more than the error of measuring."""
        limit = self._vram(cell, "spac")
        return limit is not None and result.peak_vram is not None and result.peak_vram > limit + VRAM_NOISE

    def likelihoods(self) -> dict[str, list[float]]:
        """See `likeness.measured`."""
        return {} if self.args.brief else likeness.measured(self)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT")
    add("--target", type=Path, required=True)
    add("--draft", type=Path)
    add("--device", default="CUDA0", help="CUDA0, …; simulated or cpu to try it without a GPU")
    add("--budgets", nargs="+", metavar="SHARE", help="default: 17%% 10%% 25%% 50%%")
    add("--contexts", nargs="+", type=int, metavar="TOKENS", help="default: 512 4096")
    add("--schedulers", nargs="+",
        default=["logistic", "moe-spac", "moe-spac:paper", "lru", "lru load", "ewma", "static"],
        help="the first is the one that the comparison rests on; "
             "a value of --miss may follow a space: \"lru load\" is a plain expert cache")  # fmt: skip
    add("--only", nargs="+", metavar="TEXT", help="engines whose names contain one of these")
    add("--draft-length", type=int, default=8)
    add("--tokens", type=int, help="generated after each prompt (default: 128)")
    add("--texts", type=int, help="prompts, two at least; the first one is met cold (default: 3)")
    add("--text", type=Path, help="take prompts from this file (a twin has its own)")
    add("--threads", type=int, nargs="+", metavar="N",
        help="of several numbers each side computes with the one that a short run finds best; "
             "by default both have spac's default beside that device")  # fmt: skip
    add("--reference", type=Path, help="folder of the unpatched libllama.so")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND",
        help="a server of OpenAI's completions to compare with as well; in its command, these are filled in: "
             + " ".join(f"{{{name}}}" for name in NAMES) + "; may be given several times")  # fmt: skip
    add("--seconds", type=float, default=540)
    add("--brief", action="store_true", help="the cells alone: no perplexities, nothing repeated at the end")
    add("--commit", default="", help="of the tree, where git cannot tell")
    add(
        "--quick",
        action="store_true",
        help="one budget, one short context, few tokens, where nothing else is said",
    )


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """Fill in the defaults, which --quick changes. Raise InputError for a number of threads below 1."""
    full = {"budgets": ["17%", "10%", "25%", "50%"], "contexts": [512, 4096], "tokens": 128, "texts": 3}
    quick = {"budgets": ["17%"], "contexts": [64], "tokens": 24, "texts": 2}
    for name, value in (quick if args.quick else full).items():
        setattr(args, name, getattr(args, name) or value)
    if min(args.threads or [1]) < 1:
        raise InputError("--threads: at least 1")
    return args


def run(args: argparse.Namespace) -> int:
    """Return the exit code."""
    comparison = Comparison(filled(args))
    comparison.run()
    wrong = tables.write(comparison)
    if any(line.endswith(OUT_OF_TIME) for line in comparison.not_run):
        return UNFINISHED
    return 1 if comparison.not_run or wrong else 0
