"""The course of a session on a machine with a GPU: its parts, in order, each within its time (session.py)."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from bench.gpu_suite import facts, modules
from bench.gpu_suite.keeper import Keeper

ROOT = Path(__file__).resolve().parents[2]
UNFINISHED = 3
TWIN_TYPES = ("q4_K", "q6_K", "f32", "q8_0")  # of Qwen3-30B-A3B's Q4_K_M, and what comes next to it
GB = 1 << 30
ROOM = {"tiny": GB // 16}  # bytes that twins need; of others:
FULL_SIZE = 24 * GB
PACK = (
    "import sys; from pathlib import Path; from bench.gpu_suite.pack import pack_objects, split; "
    "build, archive, out = map(Path, sys.argv[1:]); pack_objects(build, archive); split(archive, out)"
)
LARGEST_FILE = 15 << 20  # bytes of a file that comes back


class Course:
    """One call. What failed is noted, and does not keep what follows from being tried."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun = args, time.monotonic()
        self.out, self.work = args.out.resolve(), args.work.resolve()
        self.keeper = Keeper(self.work, self.out / "state.tar.gz", args.carry / "state.tar.gz")
        self.logs = self.work / "logs"
        self.logs.mkdir(exist_ok=True)
        self.unfinished: list[str] = []
        self.failed: list[str] = []
        self.environment = {**os.environ}
        self.on_gpu = args.device.upper().startswith("CUDA")

    @property
    def left(self) -> float:
        return float(self.args.seconds - (time.monotonic() - self.begun))

    def say(self, text: str) -> None:
        """To stdout and to session.txt."""
        line = f"[{time.monotonic() - self.begun:5.0f} s] {text}"
        print(line, flush=True)
        with (self.out / "session.txt").open("a") as file:
            file.write(line + "\n")

    def run(self) -> int:
        """The whole call; returns the exit code."""
        with self.keeper:
            self.keeper.note("calls", number=self.keeper.done.get("calls", {}).get("number", 0) + 1)
            self.facts()
            twins = None
            try:
                if self.prepare():
                    twins = self.begin_twins()
                    if self.build():
                        self.smoke()
                        self.patches("patches of the twins' types", 100, ",".join(TWIN_TYPES), quick=True)
                        self.choose_form()
                        self.side_by_side(twins)
            finally:
                if twins is not None and twins.poll() is None:
                    twins.terminate()
            self.say(f"failed: {', '.join(self.failed) or 'nothing'}; to go on with: "
                     f"{', '.join(self.unfinished) or 'nothing'}")  # fmt: skip
        return 1 if self.failed else UNFINISHED if self.unfinished else 0

    def facts(self) -> None:
        with (self.out / "facts.txt").open("w") as file:
            for line in facts.lines(self.work):
                print(line, file=file, flush=True)
                print(line, flush=True)
        shutil.copy(self.out / "facts.txt", self.work / f"facts-{self.keeper.done['calls']['number']}.txt")

    def prepare(self) -> bool:
        """Python's modules and the carried archives; False where it cannot go on."""
        site = self.work / "site"
        missing = modules.install(self.args.carry / "wheels", site)
        paths = [str(ROOT), str(ROOT / "python"), str(site)]
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.environment["PYTHONUNBUFFERED"] = "1"
        if shutil.which("ninja") is None and modules.unpack(self.args.carry / "wheels", "ninja", site):
            for program in site.glob("ninja*/scripts/ninja"):
                program.chmod(0o755)
                self.environment["PATH"] = f"{program.parent}:{os.environ.get('PATH', '')}"
        if missing:
            self.failed.append("modules")
            self.say(f"Python modules are missing, here and in the carry folder: {', '.join(missing)}")
        return not missing

    def objects(self) -> Path | None:
        """ggml-cuda's objects, where they were carried and are for this machine's GPU."""
        archive, folder = self.args.carry / "cuda.tar.xz", self.work / "objects"
        if not self.on_gpu or not archive.is_file():
            return None
        if not (folder / "source_id").is_file():
            with tarfile.open(archive) as content:
                content.extractall(folder, filter="data")
        wanted, found = (folder / "capability").read_text().strip(), facts.capability()
        if found and found != wanted:
            self.say(f"the carried objects are for capability {wanted}, this GPU has {found}: compiling here")
            return None
        return folder

    def cublas(self) -> list[str]:
        """The option that names cuBLAS; a stand-in that only fails, where there is none."""
        if not self.on_gpu:
            return []
        folders = facts.cublas_folders()
        if folders:
            return ["--cublas", str(folders[0].parent)]
        library = self.work / "no_cublas" / "lib" / "libcublas.so.13"
        library.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / "bench" / "gpu_suite" / "no_cublas.c"
        words = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcublas.so.13", str(source), "-o", str(library)]
        subprocess.run(words, check=False)
        self.say("no cuBLAS: linked against one that fails; prompts will fail on the GPU")
        self.failed.append("cuBLAS")
        return ["--cublas", str(library.parents[1])]

    def command(self, name: str, seconds: float, *words: object, keep: bool = False) -> int:
        """Runs `python -m WORDS…` within a time; its output goes to a log, whose end is said when it fails.
        `keep`: a part that came to an end, good or bad, is not run again by later calls."""
        if keep and self.keeper.ran(name):
            code = int(self.keeper.done[name]["code"])
            self.say(f"{name}: ended with status {code} in an earlier call")
            self.failed += [name] if code else []
            return code
        seconds = min(seconds, self.left - 5)
        if seconds < 2:
            self.unfinished.append(name)
            return UNFINISHED
        begun, log = time.monotonic(), self.logs / f"{name.replace(' ', '-')}.txt"
        code = self._run(log, seconds, [sys.executable, "-m", *map(str, words)])
        took = time.monotonic() - begun
        if keep:
            self.keeper.note(name, code=code, seconds=round(took, 1))
        self.say(f"{name}: {'done' if code == 0 else f'status {code}'} in {took:.0f} s")
        if code == UNFINISHED:
            self.unfinished.append(name)
        elif code:
            self.failed.append(name)
            self.say("\n".join(log.read_text(errors="replace").splitlines()[-12:]))
        return code

    def _run(self, log: Path, seconds: float, words: list[str]) -> int:
        """In a process group of its own, all of which ends with its time."""
        with log.open("a") as file:
            process = subprocess.Popen(
                words, cwd=ROOT, env=self.environment, stdout=file, stderr=file, start_new_session=True
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return UNFINISHED

    def begin_twins(self) -> subprocess.Popen[bytes]:
        """Writes the twins while the library is built; in memory where there is room."""
        room = ROOM.get(self.args.model, FULL_SIZE)
        memory = Path("/dev/shm")
        inside = memory.is_dir() and shutil.disk_usage(memory).free > 2 * room
        self.models = memory / "spac-twins" if inside else self.work
        words = [sys.executable, "-m", "bench.twin", self.args.model]
        paths = [self.models / f"{self.args.model}-{role}.gguf" for role in ("target", "draft")]
        self.target, self.draft = paths
        self.models.mkdir(parents=True, exist_ok=True)
        parts = [path.with_suffix(".part") for path in paths]
        moves = "; ".join(f"mv '{part}' '{path}'" for part, path in zip(parts, paths, strict=True))
        line = f"test -f '{self.draft}' && exit 0; \"$@\" && {{ {moves}; }}"
        arguments = ["sh", "-c", line, "sh", *words, str(parts[0]), "--draft", str(parts[1])]
        with (self.logs / "twins.txt").open("a") as log:
            return subprocess.Popen(
                arguments, cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def build(self) -> bool:
        """spac and the unpatched library, into the tree; objects that were carried spare compiling CUDA."""
        source, objects = self.args.carry / "source.tar.xz", self.objects()
        words = ["bench.gpu_suite.side_by_side", self.work / "out", "--only", "build", "--work", self.work]
        words += ["--device", self.args.device, "--jobs", self.args.jobs, *self.cublas()]
        words += ["--source", source] if source.is_file() else []
        if self.on_gpu and (capability := facts.capability()):
            words += ["--architectures", f"{capability}-real"]
        for more in ([["--objects", objects]] if objects else []) + [[]]:
            code = self.command("build", self.left - 60, *words, *more, "--seconds", int(self.left - 60))
            if code == 0 and self.on_gpu and not more:
                self.keep_objects()
            if code in (0, UNFINISHED):
                return code == 0
            shutil.rmtree(self.work / "build", ignore_errors=True)
        return False

    def keep_objects(self) -> None:
        """What was compiled here, for a later call on a fresh machine: it takes minutes of many cores."""
        archive = self.work / "cuda.tar.xz"
        words = [sys.executable, "-c", PACK, str(self.work / "build"), str(archive), str(self.out)]
        if archive.is_file():
            return
        log = self.logs / "objects.txt"
        if self._run(log, max(2.0, min(60, self.left - 60)), words):
            self.say("the objects could not be packed:\n" + log.read_text(errors="replace")[-400:])

    def smoke(self) -> None:
        result = self.work / "smoke.json"
        words = ["bench.gpu_suite.smoke", result, "--device", self.args.device, "--seconds", 100]
        self.command("smoke", 110, *words, keep=True)
        log = self.logs / "smoke.txt"
        if log.is_file():
            self.say("the bundled pair, against the CPU:\n" + log.read_text()[-2000:])

    def patches(self, name: str, seconds: float, types: str, *, quick: bool) -> None:
        """The patched kernels, checked for these weight types ("": all)."""
        folder = self.work / "patches"
        device = self.args.device if self.on_gpu else "CPU"
        library = ROOT / "python" / "spac" / "lib" / "libllama.so"
        words = ["bench.gpu_suite", folder, "--device", device, "--work", self.work, "--library", library]
        words += ["--seconds", int(min(seconds, self.left) - 5), "--jobs", self.args.jobs]
        words += (["--types", types] if types else []) + (["--quick"] if quick else [])
        self.command(name, seconds, *words, keep=True)
        if (folder / "patches.txt").is_file():
            shutil.copy(folder / "patches.txt", self.out / "patches.txt")
            if quick:
                shutil.copy(folder / "patches.json", self.work / "patches" / "twin-types.json")
                self.say((folder / "patches.txt").read_text())

    def choose_form(self) -> None:
        """Masks and launching ahead are used where they were right; what is used is said."""
        path = self.work / "smoke.json"
        rows = json.loads(path.read_text()) if path.is_file() else []
        errors = {row["name"]: row["error"] for row in rows if not row["fault"]}
        bound = max(5e-3, 2 * errors.get("split, 25 %", 0.0))  # what the device rounds otherwise anyhow
        right = {name: error <= bound for name, error in errors.items()}
        checked = self.work / "patches" / "twin-types.json"
        types = json.loads(checked.read_text())["types"] if checked.is_file() else []
        kernels = bool(types) and not any(row["failures"] for row in types)
        masks = kernels and right.get("split, 25 %, masks", False)
        ahead = right.get("split, 25 %, masks, ahead" if masks else "split, 25 %, ahead", False)
        looks = (
            "split, 25 %, masks, ahead, looking ahead" if masks and ahead else "split, 25 %, looking ahead"
        )
        lookahead = right.get(looks, False)
        self.environment |= {"SPAC_DEVICE_MASKS": str(int(masks)), "SPAC_LAUNCH_AHEAD": str(int(ahead))}
        self.environment["SPAC_LOOKAHEAD"] = str(int(lookahead))
        found = f"masks are read by the device: {masks}; work is queued ahead: {ahead}"
        self.say(f"{found}; layers look ahead: {lookahead}")

    def side_by_side(self, twins: subprocess.Popen[bytes]) -> None:
        """The comparison, with a timeline and the patches of all types in between."""
        try:
            code = twins.wait(max(1.0, self.left - 20))
        except subprocess.TimeoutExpired:
            self.unfinished.append("twins")
            return
        self.say(f"twins in {self.models}: " + (self.logs / "twins.txt").read_text()[-600:])
        if code or not self.draft.is_file():
            self.failed.append("twins")
            return
        first = self.keeper.done["calls"]["number"] == 1
        self.compare(self.left - 60 if first else self.left - 130)
        self.timeline()
        self.patches("patches of all types", self.left - 10, "", quick=self.args.quick)
        if self.left > 60:
            self.compare(self.left - 10)

    def compare(self, seconds: float) -> None:
        """bench.compare over everything, the deciding cells first."""
        place = self.work / "compare"
        words = ["bench.compare", place, "--target", self.target, "--draft", self.draft]
        words += ["--device", self.args.device, "--seconds", int(seconds - 5)]
        words += ["--quick"] if self.args.quick else []
        if (commit := self.args.carry / "commit").is_file():
            words += ["--commit", commit.read_text().strip()]
        if "compare" in self.unfinished:
            self.unfinished.remove("compare")
        self.command("compare", seconds, *words)
        if (place / "compare.md").is_file():
            shutil.copy(place / "compare.md", self.out / "compare.md")
            print((place / "compare.md").read_text()[:7000], flush=True)

    def timeline(self) -> None:
        """A trace of a short text with speculation, to see what overlaps."""
        path = self.work / "timeline.json"
        words = ["spac.run", "--target", self.target, "--draft", self.draft, "--device", self.args.device]
        words += ["--slots", "17%", "--prompt", "a", "-n", 24, "--temp", 0, "--timeline", path]
        self.command("timeline", 60, *words, keep=True)
        if path.is_file():
            packed = gzip.compress(path.read_bytes(), 6)
            if len(packed) <= LARGEST_FILE:
                (self.out / "timeline.json.gz").write_bytes(packed)
