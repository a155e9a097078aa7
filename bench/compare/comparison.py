"""Run the comparison: choose the cells and their order, tune them, and keep their results."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.compare import likeness, peer, threads
from bench.compare.cells import (
    LEAST_S,
    MOST_S,
    OUT_OF_TIME,
    ROOT,
    Cell,
    Engine,
    engines,
    environment,
    grid,
    layer_bytes,
    layers_on_cpu,
    run_cell,
)
from bench.compare.job import FOLLOW_UP_ROOM, NO_GPU, TOOK_TOO_LONG, Job, Result
from bench.compare.likelihood import TOKENS
from bench.compare.roofline import Bandwidths, Weights
from bench.compare.server import PeerError
from spac.config import Slots
from spac.errors import InputError
from spac.machine.cpu import default_threads, physical_cores
from spac.model.gguf.check import check_model
from spac.model.gguf.header import read_header
from tools.compare import reference_library

if TYPE_CHECKING:
    from spac.model.c_api import Model

BANDWIDTHS_S = 60  # seconds: measuring them hangs when it takes longer
FIRST = 3  # cells before perplexities are measured
VRAM_NOISE = 64 << 20
NOT_TUNED = (
    "not tuned: the VRAM of spac, or of llama.cpp with all experts on the CPU, is not known "
    "(NVML or nvidia-smi tells it)"
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
        self.peers = list(self._peers())
        rows = engines(args.schedulers, self.peers)
        rows = [row for row in rows if args.draft or not row.speculates]
        rows = [row for row in rows if self.on_gpu or not row.no_host]
        if args.only:  # peers that are named run, whatever --only says
            rows = [row for row in rows if row.command or any(text in row.name for text in args.only)]
        self.grid = list(grid(rows, args.budgets, args.contexts))
        self.sizes = layer_bytes(args.target)
        self.target, self.draft = Weights.of(args.target), Weights.of(args.draft) if args.draft else None
        self.results: dict[str, Result] = {}
        self.again: dict[str, Result] = {}  # the first pair, run again at the end
        if not args.threads:  # spac's default beside that device, for both sides
            args.threads = [default_threads(physical_cores(), gpu=self.on_gpu)]
        self.threads = threads.Threads.read(self.cells / "threads.json", args.threads)
        self.n_cpu_moe: dict[str, int | None] = {}
        self._longest_s = 0.0
        self.tried: set[str] = set()  # measured once, whether it succeeds or not
        self.prompts = {n: self._make_prompts(n) for n in {*args.contexts, TOKENS}}

    @property
    def on_gpu(self) -> bool:
        return bool(self.args.device.upper().startswith("CUDA"))

    def device(self, kind: str) -> str:
        """Return the device of that side: the simulated device computes on the CPU, and llama.cpp runs
        without it."""
        device: str = self.args.device
        return "cpu" if kind != "spac" and device.lower() in NO_GPU else device

    def _peers(self) -> Iterator[Engine]:
        """Yield the rows of --peer. An option that is no valid peer is noted as not run."""
        taken = {row.name for row in engines(self.args.schedulers)}
        for text in self.args.peer:
            try:
                engine = Engine.of_peer(*peer.parse(text))
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

    def of_peer(self, engine: Engine, prompts: list[list[int]]) -> dict[str, Any]:
        """Return the fields that only the job of a peer has; empty for others."""
        if not engine.command:
            return {}
        chosen = self.threads.of(engine.side) if peer.uses(engine.command, "threads") else 0
        return {
            "command": engine.command,
            "threads": chosen,  # 0: its command has no name for it
            "texts": [self.text_of(prompt) for prompt in prompts],
            "draft": str(self.args.draft) if engine.speculates else None,
            "draft_length": self.args.draft_length if engine.speculates else 0,
        }

    def has(self, key: str, command: str) -> bool:
        """Return True if the result under this key belongs to this command ("" except for peers)."""
        path = self.cells / f"{key}.job.json"
        return not command or (path.is_file() and Job.read(path).command == command)

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
        job = Job(
            kind=engine.kind,
            target=str(args.target),
            prompts=prompts,
            n_predict=args.tokens,
            ctx=cell.context + args.tokens + FOLLOW_UP_ROOM + 64,
            threads=self.threads.of(engine.side),
            device=self.device(engine.kind),
            draft=str(args.draft) if engine.speculates else None,
            draft_length=(engine.draft_length or args.draft_length) if engine.speculates else 0,
            n_cpu_moe=n_cpu_moe,
            slots=cell.budget,
            scheduler=engine.scheduler or "lru",
            governor=engine.governor,
            lookahead=engine.lookahead,
            no_host=engine.no_host,
        )
        return replace(job, **self.of_peer(engine, prompts))

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

    def _tuned(self, cell: Cell) -> int:
        """Return the N of --n-cpu-moe: the layers that fit into the most VRAM that spac took on this budget,
        or, where VRAM is not measured, into its slots."""
        if not self.on_gpu:
            share = Slots.parse(cell.budget).share or 0.0
            return layers_on_cpu(self.sizes, share * sum(self.sizes))
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
        threads.tune(self)
        self.bandwidths()
        # Cells that failed in an earlier call run again, after all others.
        failed = {cell for cell in self.grid if self._failed(cell)}
        waiting: list[Cell] = []
        for i, cell in enumerate(sorted(self.grid, key=failed.__contains__)):
            if i == FIRST:
                self.likelihoods()
            if self.deadline - time.monotonic() < 3 * self._least_s:  # or only the last call does it
                self._repeat()
            waiting = self._attempt([cell, *waiting])
        self.not_run += [f"{cell.key}: {NOT_TUNED}" for cell in waiting]
        self._repeat()

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
        if self.args.brief:
            return
        ours = [cell for cell in self.grid if cell.engine.kind == "spac"][:1]
        theirs = [cell for cell in self.grid if cell.engine.tuned][:1]
        if not ours or not theirs or any(cell.key not in self.results for cell in ours + theirs):
            return
        for cell in ours + theirs:
            key, left = f"{cell.key}-again", self.deadline - time.monotonic()
            path = self.cells / f"{key}.json"
            if not path.is_file() and left >= self._least_s:
                print(f"{key} …", file=sys.stderr, flush=True)
                job = Job.read(self.cells / f"{cell.key}.job.json")
                result = run_cell(job, self.cells, key, self._library(job.kind), min(left, MOST_S))
                if result.error.startswith(TOOK_TOO_LONG):
                    path.unlink(missing_ok=True)  # a later call may have time
            if path.is_file() and not (done := Result.read(path)).error:
                self.again[cell.key] = done

    def _library(self, kind: str) -> Path | None:
        """Return the `reference` of `run_cell` for an engine of that kind."""
        return None if kind == "spac" else self.reference

    def _failed(self, cell: Cell) -> bool:
        path = self.cells / f"{cell.key}.json"
        return path.is_file() and bool(Result.read(path).error)

    @property
    def _least_s(self) -> float:
        """Return the seconds that have to be left to begin another cell."""
        return max(LEAST_S, min(1.2 * self._longest_s, MOST_S / 2))

    def _run(self, cell: Cell) -> None:
        path = self.cells / f"{cell.key}.json"
        kept = path.is_file() and self.has(cell.key, cell.engine.command)
        if kept and not (done := Result.read(path)).error:
            self.results[cell.key] = done
            self.n_cpu_moe[cell.key] = Job.read(path.with_suffix(".job.json")).n_cpu_moe
            return
        job = self.job(cell)
        while True:
            begun = time.monotonic()
            left = self.deadline - begun
            if left < self._least_s:
                self.not_run.append(f"{cell.key}: {OUT_OF_TIME}")
                return
            tuned = f", --n-cpu-moe {job.n_cpu_moe}" if cell.engine.tuned else ""
            print(f"{cell.key}{tuned} …", file=sys.stderr, flush=True)
            result = run_cell(job, self.cells, cell.key, self._library(job.kind), min(left, MOST_S))
            if not result.error:
                self._longest_s = max(self._longest_s, time.monotonic() - begun)
            if not (cell.engine.tuned and self._is_over(cell, result)) or job.n_cpu_moe == len(self.sizes):
                break
            path.unlink(missing_ok=True)
            job = replace(job, n_cpu_moe=(job.n_cpu_moe or 0) + 1)
        self.n_cpu_moe[cell.key] = job.n_cpu_moe
        if result.error.startswith(TOOK_TOO_LONG) and left < MOST_S:
            path.unlink()  # the cell is not at fault
            self.not_run.append(f"{cell.key}: {OUT_OF_TIME}")
        elif result.error:
            self.not_run.append(f"{cell.key}: {result.error}")
        else:
            self.results[cell.key] = result

    def _is_over(self, cell: Cell, result: Result) -> bool:
        """Return True if llama.cpp took more VRAM than spac had, by more than the error of measuring."""
        limit = self._vram(cell, "spac")
        return limit is not None and result.peak_vram is not None and result.peak_vram > limit + VRAM_NOISE

    def bandwidths(self) -> Bandwidths | None:
        """Return the machine's bandwidths, measured once."""
        path = self.cells / "bandwidths.json"
        if not path.is_file() and "bandwidths" not in self.tried and not self.args.brief:
            self.tried.add("bandwidths")
            command = [sys.executable, "-m", "bench.compare.roofline", str(self.reference / "libllama.so")]
            command += [self.args.device if self.on_gpu else "CPU", str(max(self.args.threads))]
            command += ["64" if self.args.quick else "1024", str(path)]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BANDWIDTHS_S,
                    env=environment(self.reference),
                )  # fmt: skip
                fault = (done.stderr.strip() or "failed").splitlines()[-1][:200] if done.returncode else ""
            except subprocess.TimeoutExpired:
                fault = f"{TOOK_TOO_LONG} {BANDWIDTHS_S} s"
            if fault:
                self.not_run.append(f"bandwidths: {fault}")
        if not path.is_file():
            return None
        return Bandwidths(**json.loads(path.read_text()))

    def likelihoods(self) -> dict[str, list[float]]:
        """See `likeness.measured`."""
        return {} if self.args.brief else likeness.measured(self)

    def likeness(self) -> tuple[list[str], list[str]]:
        """See `likeness.judged`."""
        return likeness.judged(self.likelihoods())
