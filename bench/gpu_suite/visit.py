"""Check and measure on a machine with a GPU what only a GPU can show, the deciding figures first.

The machine may be fresh and without a network. `python -m bench pack` makes the carry folder, which has what
it may lack. Each part runs in a process of its own within its time, and writes its result into OUT. Parts
that ended well in an earlier call are left out, unless --parts names them. Nothing is measured where the
smoke test is wrong, unless --parts asks for it. Exit code 1: OUT/visit.txt names the parts that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path

from bench import processes
from bench.processes import ROOT

PACKAGE = ROOT / "python" / "spac"
CHECKS = ("facts", "build", "smoke", "doors")
PARTS = (*CHECKS, "full", "compare", "served", "forms", "card", "other", "contexts", "budgets")
"""The parts in their order. Those behind the checks need the twins."""
ON_REQUEST = ("probes", "patches", "timeline")
"""Parts that answer nothing new after a first visit to a kind of card. --parts names them."""
MACHINE = """uname -a; nproc; lscpu | grep -E "Model name|Core|Thread|Flags"; free -g; ulimit -l; df -h .
nvidia-smi; nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max,compute_cap --format=csv
gcc --version; cmake --version; nvcc --version; ldconfig -p | grep libcublas; python3 --version"""
"""Commands that describe a machine. Each may fail."""
TYPES = "q4_K,q6_K,f32,q8_0"
"""The weight types of the twins."""
MODEL = "qwen3-30b-a3b"
TWINS_BYTES = 24 << 30
DECIDING = ("spac logistic, no draft", "llama.cpp, experts on CPU", "llama.cpp --n-cpu-moe")
ELSEWHERE = ("spac logistic, no draft", "llama.cpp, experts on CPU", "llama.cpp --n-cpu-moe --no-host")
"""Parts of the names of the rows of `compare`, on the first budgets and context and on the others. At 100 %
llama.cpp has everything on the card."""
SEVERAL = """
import sys
from concurrent.futures import ThreadPoolExecutor
from spac.config import EngineConfig
from spac.engine import Engine

device, target, draft = sys.argv[1:]
config = EngineConfig(target, draft, device=device, slots="25%", parallel=4)
with Engine(config) as engine, ThreadPoolExecutor(4) as pool:
    for text in pool.map(lambda i: "".join(engine.generate(f"def function_{i}(", 64)), range(4)):
        print(repr(text))
"""
"""Several texts at once from one engine, on the device that is named."""
TEXT = "the sea was grey and a man walked along its edge counting boats that came home late "
OTHER = "gpt-oss-20b"
"""The model of the part `other`."""
FORMS: dict[str, dict[str, str]] = {
    "in place": {},
    "by copies": {"SPAC_FORM": "no-in-place"},
    "scheduler beside": {"SPAC_FORM": "schedule-beside"},
    "scheduler between": {"SPAC_FORM": "no-schedule-beside"},
    "rows read early": {"SPAC_FORM": "early-rows"},
    "no rows read early": {"SPAC_FORM": "no-early-rows"},
    "with 8 hardware queues": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"},
    "in place again": {},
}
"""Forms of a step that a card has to judge, with the variables of each. The first comes again, because
machines change."""


def said(command: str) -> str:
    """Return the output of a command of the shell; "" where it cannot run."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def capability() -> str:
    """Return the first GPU's compute capability without its dot ("90"); "" without a GPU."""
    found = re.match(r"(\d+)\.(\d)", said("nvidia-smi --query-gpu=compute_cap --format=csv,noheader"))
    return found[1] + found[2] if found else ""


def cublas_folders() -> list[Path]:
    """Return folders of a libcublas.so.*, likeliest first: Python's packages, the toolkit, the loader's
    cache."""
    found = [path for folder in sys.path for path in Path(folder or ".").glob("nvidia/*/lib/libcublas.so.*")]
    for pattern in ("cuda*/lib64", "cuda*/targets/*/lib"):
        found += Path("/usr/local").glob(f"{pattern}/libcublas.so.*")
    found += map(Path, re.findall(r"=> (\S*libcublas\.so\.\S*)", said("ldconfig -p")))
    return list(dict.fromkeys(path.parent for path in found))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive once, and return the folder."""
    if not folder.is_dir():
        unfinished = folder.with_suffix(".tmp")
        with tarfile.open(archive) as content:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            content.extractall(unfinished, **safe)
        unfinished.rename(folder)
    return folder


class Visit:
    """One call. A part that fails is named, and the others still run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun = args, time.monotonic()
        self.out, self.work, self.carry = (each.resolve() for each in (args.out, args.work, args.carry))
        self.failed: list[str] = []
        self.on_gpu = args.device.upper().startswith("CUDA")
        for folder in (self.out, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        paths = [str(ROOT), str(ROOT / "python")]
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if (self.carry / "site.tar.xz").is_file():
            site = unpack(self.carry / "site.tar.xz", self.work / "site")
            paths.append(str(site))
            self.environment["PATH"] = f"{site / 'bin'}:{os.environ['PATH']}"
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)

    @property
    def left(self) -> float:
        """Return the seconds that are left of the call."""
        return float(self.args.seconds - (time.monotonic() - self.begun))

    def say(self, text: str) -> None:
        """Print a text, and keep it in visit.txt."""
        line = f"[{time.monotonic() - self.begun:5.0f} s] {text}"
        print(line, flush=True)
        with (self.out / "visit.txt").open("a") as file:
            file.write(line + "\n")

    def run(self, name: str, seconds: float, *words: object, **variables: str) -> bool:
        """Run a command within a time. Its output is OUT/NAME.txt, of which the end is printed."""
        log = self.out / f"{name.replace(' ', '-')}.txt"
        ended = processes.run(words, log, min(seconds, self.left), {**self.environment, **variables})
        self.say(f"{name}: {ended.fault or 'done'}\n" + "\n".join(ended.output.splitlines()[-30:]))
        return ended.code == 0

    def python(self, name: str, seconds: float, module: str, *words: object, **variables: str) -> bool:
        return self.run(name, seconds, sys.executable, "-m", module, *words, **variables)

    def visit(self) -> int:
        """Run the parts; return the exit code."""
        wanted = {*self.args.parts} - {*CHECKS, "probes", "patches"}
        twins = self.write_twins(wanted) if wanted else None
        try:
            for name in self.args.parts:
                done = self.work / f"{name}.done"
                if len(self.args.parts) == len(PARTS) and done.is_file():
                    continue
                if twins and name in wanted and not self.written(twins):
                    self.failed.append("twins")
                    break
                if self.left < 30:
                    self.failed.append(f"{name} (no time)")
                elif getattr(self, name)():
                    done.touch()
                else:
                    self.failed.append(name)
                    if name in ("build", "smoke") and len(self.args.parts) == len(PARTS):
                        break
        finally:
            if twins and twins.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(twins.pid, signal.SIGKILL)
                twins.wait()
        self.say(f"failed: {', '.join(self.failed) or 'nothing'}")
        return int(bool(self.failed))

    def facts(self) -> bool:
        """Describe the machine."""
        self.run("machine", 60, "sh", "-c", MACHINE)
        return True

    def probes(self) -> bool:
        """Ask the driver for what spac relies on."""
        return self.python("probes", 220, "bench", "probes", self.work)

    def build(self) -> bool:
        """Build spac and the unpatched library into the tree. Carried objects save compiling CUDA."""
        build, words = self.work / "build", ["-DSPAC_BUILD_REFERENCE=ON"]
        if (self.carry / "source.tar.xz").is_file():
            source = unpack(self.carry / "source.tar.xz", self.work / "llama.cpp")
            words.append(f"-DSPAC_LLAMA_CPP_DIR={source}")
        if self.on_gpu:
            words += [f"-DSPAC_CUBLAS_ROOT={folder.parent}" for folder in cublas_folders()[:1]]
            words.append(f"-DSPAC_CUDA_ARCHITECTURES={capability()}-real")
        if self.on_gpu and (self.carry / "cuda.tar.xz").is_file():
            objects = unpack(self.carry / "cuda.tar.xz", self.work / "objects")
            if (objects / "capability").read_text().strip() == capability():
                words.append(f"-DSPAC_CUDA_OBJECTS={objects}")
        words.append(f"-DSPAC_CUDA={'on' if self.on_gpu else 'off'}")
        words.append(f"-DPython_EXECUTABLE={sys.executable}")
        jobs = os.cpu_count() or 1
        if not (self.run("configure", 60, "cmake", "-G", "Ninja", "-S", ROOT, "-B", build, *words)
                and self.run("build", 900, "ninja", "-C", build, "-j", jobs)):  # fmt: skip
            return False
        shutil.copytree(build / "spac", PACKAGE, dirs_exist_ok=True)
        return self.run("import", 60, sys.executable, "-c", "import spac; from spac import _core")

    def write_twins(self, wanted: set[str]) -> subprocess.Popen[bytes]:
        """Start writing the twins, in memory where there is room for all, while the library is built.

        wanted: the parts, which say if a draft and the other model are written too.
        """
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 * TWINS_BYTES
        folder = (memory if roomy or (memory / "spac-twins").is_dir() else self.work) / "spac-twins"
        folder.mkdir(exist_ok=True)
        model = self.args.model
        self.target, self.draft, self.other_target = (
            folder / f"{model}-{role}.gguf" for role in ("target", "draft", "other")
        )
        jobs = [(model, [self.target, *([self.draft] if "timeline" in wanted else [])])]
        jobs += [(OTHER if model == MODEL else model, [self.other_target])] if "other" in wanted else []
        with (self.out / "twins.txt").open("w") as log:
            script = "\n".join(f"({self.written_by(*job)}) &" for job in jobs)
            ends = "wait; " + " && ".join(f"[ -f {path} ]" for _, paths in jobs for path in paths)
            return subprocess.Popen(["sh", "-c", f"{script}\n{ends}"], cwd=ROOT, env=self.environment,
                                    stdout=log, stderr=log, process_group=0)  # fmt: skip

    @staticmethod
    def written_by(model: str, paths: list[Path]) -> str:
        """Return the shell's command that writes a twin and its draft anew, unless they are there whole."""
        parts = [path.with_suffix(".part") for path in paths]
        words = [sys.executable, "-m", "tools.twin", model, parts[0]]
        words += ["--draft", *parts[1:]] if parts[1:] else []
        moves = "".join(f" && mv {part} {path}" for part, path in zip(parts, paths, strict=True))
        return f"[ -f {paths[-1]} ] || {{ {' '.join(map(str, words))}{moves}; }}"

    def written(self, twins: subprocess.Popen[bytes]) -> bool:
        """Return True if the twins are written before the call's time is over."""
        try:
            return twins.wait(max(0.0, self.left)) == 0
        except subprocess.TimeoutExpired:
            return False

    def pair(self) -> tuple[Path, Path]:
        """Return the bundled pair, or one that is made where it did not travel."""
        bundled = [PACKAGE / "demo" / f"{role}.gguf" for role in ("target", "draft")]
        if not all(path.is_file() for path in bundled):
            bundled = [self.work / f"pair-{role}.gguf" for role in ("target", "draft")]
            self.run("pair", 60, "sh", "-c", self.written_by("tiny", bundled))
        return bundled[0], bundled[1]

    def smoke(self) -> bool:
        """Compare a small model on the device with the CPU, in every form of the split."""
        at_once = 1 if self.args.quick else 4
        words = ["--device", self.args.device, "--seconds", 200, "--at-once", at_once, "--threads", 3]
        words += ["--forms", "ahead", "all"] if self.args.quick else []
        words += ["--target", self.pair()[0]]
        result = self.out / "smoke.json"
        return self.python("smoke", 260, "bench", "smoke", result, "--logs", self.out / "logs", *words)

    def patches(self) -> bool:
        """Check the patched kernels for the twins' weight types."""
        words = ["--types", TYPES, "--quick", "--device", self.args.device if self.on_gpu else "CPU"]
        return self.python("patches", 100, "bench", "patches", self.out, *words)

    def doors(self) -> bool:
        """Run a small pair, with its draft, through the doors that smoke does not open."""
        (target, draft), device = self.pair(), self.args.device
        pair = ["--target", target, "--draft", draft]
        served = ["--systems", "device", "--device", device, "--threads", min(4, self.threads[0])]
        served += ["--counts", 1, 4, "--rounds", 1, "--context", 4096]
        text = ["--prompt", "def f(n):", "-n", 96, "--temp", 0, "--stats", "json", "--device", device]
        done = [
            self.python("doctor", 60, "spac", "doctor", "--target", target),
            self.python("run", 60, "spac.run", *pair, *text),
            self.run("several", 60, sys.executable, "-c", SEVERAL, device, target, draft),
            self.python("served pair", 60, "bench", "parallel_servers", *pair, *served),
        ]
        return all(done)

    def full(self) -> bool:
        """Read a long prompt on a card that has little memory left."""
        left = [1500, 700] if self.on_gpu else []
        words = ["--target", self.target, "--device", self.args.device, "--threads", self.threads[0]]
        words += ["--prompt", 256 if self.args.quick else 8192, "--left", *left]
        return self.python("full", 120, "bench", "full_card", self.out / "full.json", *words)

    def compared(
        self, name: str, seconds: float, budgets: Sequence[str], contexts: Sequence[int], only: Sequence[str]
    ) -> bool:
        """Run `compare`. Cells of earlier calls stay in the work folder."""
        seconds = min(seconds, self.left - 10)
        place = self.work / ("compare-other" if name == "other" else "compare")
        target = self.other_target if name == "other" else self.target
        words: list[object] = [
            "--target",
            target,
            "--device",
            self.args.device,
            "--tokens",
            128,
            "--texts",
            4,
        ]
        words += ["--seconds", int(seconds - 5), "--brief", "--threads", *self.threads, "--only", *only]
        if self.args.quick:
            budgets, contexts, words = budgets[:1], contexts[:1], [*words, "--quick"]
        words += ["--budgets", *budgets, "--contexts", *map(self.short, contexts)]
        commit = self.carry / "commit"
        words += ["--commit", commit.read_text().strip()] if commit.is_file() else []
        done = self.python(name, seconds, "bench", "compare", place, *words)
        if (place / "compare.md").is_file():
            shutil.copy(place / "compare.md", self.out / f"{name}.md")
        return done

    # The deciding rows, also with everything on the card; other shares; long prompts; another model.
    compare = partialmethod(compared, "compare", 240, ("17%", "100%"), (512,), DECIDING)
    budgets = partialmethod(compared, "budgets", 200, ("50%", "25%", "10%"), (512,), ELSEWHERE)
    contexts = partialmethod(compared, "contexts", 240, ("17%",), (4096, 16384), ELSEWHERE)
    other = partialmethod(compared, "other", 160, ("25%",), (512,), ELSEWHERE)

    @property
    def threads(self) -> list[int]:
        """Return numbers of threads to try. More threads than cores take a thousand times as long."""
        cores = os.cpu_count() or 1
        return sorted({max(1, cores - 2), cores})

    def short(self, n: int) -> int:
        """Return the tokens of a prompt, fewer where little of everything is asked for."""
        return min(n, 64) if self.args.quick else n

    def served(self) -> bool:
        """Measure clients of the server, which runs on llama.cpp's loop, and one text of the session."""
        done = []
        for share in ("17%", "100%", "auto"):  # with `auto` the model runs without the split
            name = f"served {share.strip('%')}"
            text = ["--prompt", "0 " + TEXT * 12, "-n", self.short(128), "--temp", 0, "--ignore-eos"]
            text += ["--threads", self.threads[0], "--stats", "json"]
            done.append(self.generated(name.replace("served", "alone"), *text, slots=share))
            words = ["--systems", "device", "--device", self.args.device, "--slots", share, "--context", 2560]
            words += ["--target", self.target, "--threads", self.threads[0], "--counts", 1, 4, "--rounds", 2]
            words += ["--words", self.short(200), "--tokens", self.short(128), "--requests", 1]
            words += ["--out", self.out / f"{name.replace(' ', '-')}.md"]
            done.append(self.python(name, 120, "bench", "parallel_servers", *words))
        return all(done)

    def forms(self) -> bool:
        """Time the steps of each form on the same text. The statistics of each are in its file."""
        words = ["-n", 256, "--temp", 0, "--seed", 1, "--threads", self.threads[0], "--stats", "json"]
        words += ["--prompt", "a"]
        done = [self.generated(f"form {name}", *words, **variables) for name, variables in FORMS.items()]
        return all(done)

    def card(self) -> bool:
        """Make the row of this card for docs/cards.md, as its owner would: with 8 GB of it."""
        limit = [] if self.args.quick else ["--vram-limit", "8G"]
        words = ["--submit", self.out / "card.json", "--target", self.target, "--device", self.args.device]
        return self.python("card", 240, "spac", "bench", *words, *limit)

    def generated(self, name: str, *words: object, slots: str = "17%", **variables: str) -> bool:
        """Generate a text with that share of the experts in slots."""
        place = ["--target", self.target, "--device", self.args.device, "--slots", slots]
        return self.python(name, 60, "spac.run", *place, *words, **variables)

    def timeline(self) -> bool:
        """Trace a short text with a draft, to see what overlaps (ui.perfetto.dev shows it)."""
        record, path = self.work / "timeline.npz", self.work / "timeline.json"
        words = ["--prompt", "a", "--draft", self.draft, "-n", 24, "--temp", 0, "--record", record]
        done = self.generated("timeline", *words)
        done = done and self.python("report", 60, "spac", "report", record, "--timeline", path)
        if path.is_file():
            (self.out / "timeline.json.gz").write_bytes(gzip.compress(path.read_bytes(), 6))
        return done


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="where the results go")
    add("--carry", type=Path, default=ROOT / "build" / "carry", help="what `python -m bench pack` made")
    add("--work", type=Path, default=ROOT / "build" / "gpu_suite", help="what later calls go on from")
    add("--device", default="CUDA0", help="CUDA0, …; simulated to rehearse without a GPU")
    add("--model", default=MODEL, help="a name of tools.twin's; tiny to rehearse")
    add("--seconds", type=float, default=590, help="of this call")
    add("--parts", nargs="+", choices=(*PARTS, *ON_REQUEST), default=PARTS, help="these parts only")
    add("--quick", action="store_true", help="little of everything, to rehearse")


def run(args: argparse.Namespace) -> int:
    """Return the exit code."""
    return Visit(args).visit()
