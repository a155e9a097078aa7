"""Define the cells of the comparison: the engines, their budgets and contexts, and the process that runs a
cell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.compare import peer
from bench.compare.job import TOOK_TOO_LONG, Job, Result
from bench.compare.vram import VramMeter
from spac.model.gguf.header import read_header
from spac.model.gguf.info import EXPERTS

ROOT = Path(__file__).resolve().parents[2]
OUT_OF_TIME = "out of time"
LEAST_S = 20  # seconds: nothing begins with fewer left
MOST_S = 150  # seconds: a cell that takes longer hangs


@dataclass(frozen=True)
class Engine:
    """A row of the table. With `tuned`, as many layers' experts are on the device as fit into the VRAM that
    spac took (llama.cpp's --n-cpu-moe)."""

    name: str
    kind: str
    speculates: bool
    tuned: bool = False
    scheduler: str = ""
    governor: str | None = None
    draft_length: int | None = None  # None: the comparison's draft length
    lookahead: int | None = None  # None: spac's default
    no_host: bool = False  # llama.cpp's repacked kernels for the CPU; beside a GPU they are off otherwise
    command: str = ""  # a peer's command, with its {names}

    @classmethod
    def of_peer(cls, name: str, command: str) -> Engine:
        """Return the row of a peer. Its properties follow from the names that its command uses."""
        speculates = peer.uses(command, "draft")
        name += ", draft" if speculates else ""
        return cls(name, "peer", speculates, tuned=peer.uses(command, "n_cpu_moe"), command=command)

    @property
    def side(self) -> str:
        """Return the key that the number of threads is chosen for: one side's engines share it, each peer has
        its own."""
        return f"peer {self.name}" if self.command else self.kind

    @property
    def by_budget(self) -> bool:
        """Return True if the budget of experts on the device makes a difference to it."""
        return self.kind == "spac" or self.tuned


def engines(schedulers: list[str], peers: Sequence[Engine] = ()) -> list[Engine]:
    """Return all rows in the order in which they run: those that decide first, each after the row that it is
    tuned to. The comparison rests on the first scheduler."""
    first, governed = schedulers[0], [name for name in schedulers[:2] if name in schedulers]
    spac = {name: Engine(f"spac {name}, draft", "spac", True, scheduler=name) for name in schedulers}
    rows = [
        spac.pop(first),
        Engine("llama.cpp, experts on CPU, draft", "llama.cpp", True),
        Engine("llama.cpp --n-cpu-moe, draft", "llama.cpp", True, tuned=True),
    ]
    for name in governed:
        rows.append(Engine(f"spac {name}, governor", "spac", True, scheduler=name, governor="roofline"))
        if name == first:
            rows += [
                Engine("llama.cpp, experts on CPU", "llama.cpp", False),
                Engine("llama.cpp --n-cpu-moe", "llama.cpp", False, tuned=True),
                *peers,
            ]
        rows += [spac.pop(name)] if name in spac else []
    # Fewer drafted tokens need fewer experts: llama.cpp's own default length.
    rows.append(Engine("llama.cpp --n-cpu-moe, draft of 3", "llama.cpp", True, tuned=True, draft_length=3))
    for what, speculates in ((", draft", True), ("", False)):
        name = f"llama.cpp --n-cpu-moe --no-host{what}"
        rows.append(Engine(name, "llama.cpp", speculates, tuned=True, no_host=True))
    rows.append(Engine(f"spac {first}, no draft", "spac", False, scheduler=first))
    for speculates in (True, False):  # a twin's routers are easier to predict than a real model's: tools/twin
        name = f"spac {first} without lookahead, {'draft' if speculates else 'no draft'}"
        rows.append(Engine(name, "spac", speculates, scheduler=first, lookahead=0))
    return [*rows, *spac.values()]


@dataclass(frozen=True)
class Cell:
    """One engine on one budget ("17%") and context (tokens of prompt)."""

    engine: Engine
    budget: str
    context: int

    @property
    def key(self) -> str:
        budget = self.budget if self.engine.by_budget else "any"
        return key_of(f"{self.engine.name}-{budget}-{self.context}")


def key_of(name: str) -> str:
    """Return the name as a part of file names."""
    return "".join(c if c.isalnum() or c in "-%." else "_" for c in name)


def grid(rows: list[Engine], budgets: list[str], contexts: list[int]) -> Iterator[Cell]:
    """Yield every cell once, the deciding ones first. All engines run on the first budget and context. Then
    the first engines run on the others, then the rest."""
    places = [(budget, context) for context in contexts for budget in budgets]
    places.sort(key=lambda place: (budgets.index(place[0]) > 0) + (contexts.index(place[1]) > 0))
    # The deciding rows are spac with a draft and with the governor, all peers, and four rows of llama.cpp:
    # two with a draft and two without, because either may be its best.
    kinds = [row.kind for row in rows]
    deciding = 2 + 4 * ("llama.cpp" in kinds) + kinds.count("peer")
    parts = [(rows, places[:1]), (rows[:deciding], places[1:]), (rows[deciding:], places[1:])]
    seen: set[str] = set()
    for some, where in parts:
        for budget, context in where:
            for engine in some:
                cell = Cell(engine, budget, context)
                if cell.key not in seen:
                    seen.add(cell.key)
                    yield cell


def layer_bytes(path: Path) -> list[int]:
    """Return the bytes of every layer's experts, 0 where a layer has none."""
    header = read_header(path)
    sizes: dict[int, int] = {}
    for tensor in header.tensors:
        if tensor.name.startswith("blk."):
            layer = int(tensor.name.split(".")[1])
            sizes[layer] = sizes.get(layer, 0) + (tensor.n_bytes if EXPERTS.search(tensor.name) else 0)
    return [sizes.get(i, 0) for i in range(max(sizes) + 1)]


def layers_on_cpu(sizes: list[int], room: float) -> int:
    """Return the N of --n-cpu-moe: the first N layers' experts are on the CPU, the others' fit into `room`
    bytes."""
    used, n = 0, len(sizes)
    while n > 0 and used + sizes[n - 1] <= room:
        n -= 1
        used += sizes[n]
    return n


def environment(reference: Path | None) -> dict[str, str]:
    """Return the environment of a process that runs the unpatched library of `reference`, or (None) spac's
    own.

    CUDA's libraries may be Python packages. spac finds them by itself, the unpatched library needs their
    folders.
    """
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "python")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    found.pop("LLAMA_CPP_LIB_PATH", None)
    if reference is not None:
        packages = [str(each) for folder in sys.path for each in Path(folder or ".").glob("nvidia/*/lib")]
        paths = [path for path in (found.get("LD_LIBRARY_PATH", ""), *packages) if path]
        found |= {"LLAMA_CPP_LIB_PATH": str(reference), "LD_LIBRARY_PATH": os.pathsep.join(paths)}
    return found


def run_cell(job: Job, work: Path, key: str, reference: Path | None, seconds: float) -> Result:
    """Run a job in a process of its own, and keep its result in the work folder.

    reference: the folder of the unpatched library, for jobs of llama.cpp; None: spac's own library. A peer
    has its own program.
    """
    job_path, result_path, log_path = (work / f"{key}.{end}" for end in ("job.json", "json", "log"))
    job.write(job_path)
    library = "spac" if reference is None else "stock"
    result_path.unlink(missing_ok=True)
    if job.command:
        result = peer.run(job, log_path, seconds)
        result.write(result_path)
        return result
    begun = time.monotonic()
    with VramMeter(job.device) as meter, log_path.open("w") as log:
        command = [sys.executable, "-m", "bench.compare.worker", str(job_path), str(result_path), library]
        try:
            code = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(reference),
                stdout=log,
                stderr=log,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return _failed(f"{TOOK_TOO_LONG} {seconds:.0f} s", result_path)
    if not result_path.is_file():
        tail = log_path.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        took = time.monotonic() - begun
        return _failed(f"ended with status {code} after {took:.0f} s: {tail[0][:200]}", result_path)
    result = replace(Result.read(result_path), peak_vram=meter.used, threads=job.threads)
    result.write(result_path)
    return result


def _failed(reason: str, path: Path) -> Result:
    """Return a failed result, and keep it so that later calls know it."""
    result = Result(error=reason)
    result.write(path)
    return result
