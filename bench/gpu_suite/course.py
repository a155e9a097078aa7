"""Run a session on a machine with a GPU: its parts, in order, each within its time (session.py)."""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from bench.gpu_suite import facts, modules
from bench.gpu_suite.keeper import UNFINISHED, unpack
from bench.gpu_suite.parts import ROOT, Parts
from bench.gpu_suite.twins import Twins, place

TWIN_TYPES = ("q4_K", "q6_K", "f32", "q8_0")  # of Qwen3-30B-A3B's Q4_K_M, and the types next to it
# The parts that follow the comparison's first part, and the seconds that each may take.
LATE = {"timeline": 60, "mask cost": 50, "limit": 60, "patches of all types": 80}
# At 100 % all experts are resident: it is the cost of the split itself.
BUDGETS = ("17%", "10%", "25%", "50%", "100%")
PACK = (
    "import sys; from pathlib import Path; from bench.gpu_suite.pack import pack_objects, split; "
    "build, archive, out = map(Path, sys.argv[1:]); "
    "archive.is_file() or pack_objects(build, archive); split(archive, out)"
)
FORM = ("SPAC_DEVICE_MASKS", "SPAC_LAUNCH_AHEAD", "SPAC_LOOKAHEAD")
TWINS_CHECKED = "patches-twins"  # separate, because other types' kernels do not decide how the twins run
LARGEST_FILE = 15 << 20  # bytes of a file that is brought back


class Course(Parts):
    """One call of the session: its parts, in order."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.on_gpu = args.device.upper().startswith("CUDA")
        self.plain_device = args.device if self.on_gpu else "CPU"  # ggml's name of the device
        self.library = ROOT / "python" / "spac" / "lib" / "libllama.so"
        self.quick = ["--quick"] if args.quick else []

    def run(self) -> int:
        """Run the whole call. Return the exit code."""
        with self.keeper:
            self.keeper.note("calls", number=self.keeper.done.get("calls", {}).get("number", 0) + 1)
            self.facts()
            if self.prepare():
                self.twins = self.begin_twins()
                try:
                    if self.build():
                        types = ",".join(TWIN_TYPES)
                        self.attempt(self.smoke)
                        self.attempt(self.patches, "patches of the twins' types", 100, types, quick=True)
                        self.attempt(self.choose_form)
                        self.attempt(self.side_by_side)
                finally:
                    self.twins.end()
            failed, unfinished = (", ".join(dict.fromkeys(some)) for some in (self.failed, self.unfinished))
            self.say(f"failed: {failed or 'nothing'}; to go on with: {unfinished or 'nothing'}")
        return 1 if self.failed else UNFINISHED if self.unfinished else 0

    def facts(self) -> None:
        with (self.out / "facts.txt").open("w") as file:
            for line in facts.lines(self.work):
                print(line, file=file, flush=True)
                print(line, flush=True)
        shutil.copy(self.out / "facts.txt", self.work / f"facts-{self.keeper.done['calls']['number']}.txt")

    def prepare(self) -> bool:
        """Unpack Python's modules and the carried archives. Return False where the call cannot continue."""
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
        """Return ggml-cuda's objects, where they were carried and are for this machine's GPU."""
        archive, folder = self.args.carry / "cuda.tar.xz", self.work / "objects"
        if not self.on_gpu or not archive.is_file():
            return None
        try:
            if not (folder / "source_id").is_file():
                unpack(archive, folder)
        except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
            self.say(f"the carried objects cannot be unpacked: {error}: compiling here")
            return None
        wanted, found = (folder / "capability").read_text().strip(), facts.capability()
        if found and found != wanted:
            self.say(f"the carried objects are for capability {wanted}, this GPU has {found}: compiling here")
            return None
        return folder

    def cublas(self) -> list[str]:
        """Return the option that names cuBLAS, or a library whose calls all fail where there is none."""
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

    @property
    def commit(self) -> str:
        """Return the tree's commit as it was packed, empty where nothing was packed."""
        path: Path = self.args.carry / "commit"
        return path.read_text().strip() if path.is_file() else ""

    def begin_twins(self) -> Twins:
        """Start writing the twins, while the library is built."""
        folder = place(self.args.model, Path("/dev/shm"), self.work)
        return Twins(self.args.model, folder, self.logs / "twins.txt", self.environment)

    def build(self) -> bool:
        """Build spac and the unpatched library into the tree. Carried objects save compiling CUDA."""
        source, objects = self.args.carry / "source.tar.xz", self.objects()
        words = ["bench.gpu_suite.side_by_side", self.work / "out", "--only", "build", "--work", self.work]
        words += ["--device", self.args.device, "--jobs", self.args.jobs, *self.cublas()]
        words += ["--source", source] if source.is_file() else []
        if self.on_gpu and (capability := facts.capability()):
            words += ["--architectures", f"{capability}-real"]
        more = ["--objects", objects] if objects else []
        code = self.command("build", self.left - 60, *words, *more, "--seconds", int(self.left - 60))
        if code == 0 and self.on_gpu and not more:
            self.keep_objects()
        if code not in (0, UNFINISHED):  # after a failure, compiling all of CUDA would take the call's time
            self.say((self.work / "log.txt").read_text(errors="replace")[-3000:])
        return code == 0

    def keep_objects(self) -> None:
        """Keep what was compiled here for a later call on a fresh machine: compiling takes minutes of many
        cores."""
        archive = self.work / "cuda.tar.xz"
        words = [sys.executable, "-c", PACK, str(self.work / "build"), str(archive), str(self.out)]
        log = self.logs / "objects.txt"
        if self.process(log, max(2.0, min(60, self.left - 60)), words):
            self.say("the objects could not be packed:\n" + log.read_text(errors="replace")[-400:])

    def smoke(self) -> None:
        result = self.work / "smoke.json"
        at_once = max(1, min(4, self.args.jobs // 3))
        words = ["bench.gpu_suite.smoke", result, "--device", self.args.device, "--seconds", 100]
        words += [
            "--logs",
            self.logs,
            "--at-once",
            at_once,
            "--threads",
            max(1, self.args.jobs // at_once - 1),
        ]
        # Where forms hang, each of the others has 5 s after its time. It ends by itself, with a result.
        self.command("smoke", 160, *words, keep=True)
        log = self.logs / "smoke.txt"
        if log.is_file():
            self.say("the bundled pair, against the CPU:\n" + log.read_text()[-2000:])

    def patches(self, name: str, seconds: float, types: str, *, quick: bool) -> None:
        """Check the patched kernels for these weight types ("": all)."""
        folder = self.work / (TWINS_CHECKED if types else "patches")
        words = ["bench.gpu_suite", folder, "--device", self.plain_device, "--work", self.work]
        words += ["--library", self.library]
        words += ["--seconds", int(min(seconds, self.left) - 5), "--jobs", self.args.jobs, "--no-cost"]
        words += (["--types", types] if types else []) + (["--quick"] if quick else [])
        self.command(name, seconds, *words, keep=True)
        if (folder / "patches.txt").is_file():
            shutil.copy(folder / "patches.txt", self.out / "patches.txt")
            if types:
                self.say((folder / "patches.txt").read_text())

    def choose_form(self) -> None:
        """Use masks and launching ahead where they were right, and report what is used."""
        path = self.work / "smoke.json"
        rows = json.loads(path.read_text()) if path.is_file() else []
        errors = {row["name"]: row["error"] for row in rows if not row["fault"] and "error" in row}
        bound = max(5e-3, 2 * errors.get("split, 25 %", 0.0))  # the device's own rounding differs by as much
        right = {name: error <= bound for name, error in errors.items()}
        checked = self.work / TWINS_CHECKED / "patches.json"
        found = json.loads(checked.read_text()) if checked.is_file() else {"types": [], "unfinished": []}
        kernels = bool(found["types"]) and not any(row["failures"] for row in found["types"])
        kernels = kernels and not found["unfinished"]
        masks = kernels and right.get("split, 25 %, masks", False)
        ahead = right.get("split, 25 %, masks, ahead" if masks else "split, 25 %, ahead", False)
        looks = (
            "split, 25 %, masks, ahead, looking ahead" if masks and ahead else "split, 25 %, looking ahead"
        )
        lookahead = right.get(looks, False)
        chosen = (str(int(each)) for each in (masks, ahead, lookahead))
        self.environment |= dict(zip(FORM, chosen, strict=True))
        form = f"masks are read by the device: {masks}; work is queued ahead: {ahead}"
        self.say(f"{form}; layers look ahead: {lookahead}")

    def side_by_side(self) -> None:
        """Run the deciding cells of the comparison, then the late parts, then the rest of the comparison."""
        code = self.twins.wait(max(1.0, self.left - 20))
        if code is None:
            self.unfinished.append("twins")
            return
        self.say(f"twins in {self.twins.folder}: {self.twins.said}")
        if code:
            self.failed.append("twins")
            return
        first = self.keeper.done["calls"]["number"] == 1
        late = {name: seconds for name, seconds in LATE.items() if not self.keeper.ran(name)}
        code = self.compare(self.left - 10 - (LATE["timeline"] if first else sum(late.values())))
        self.attempt(self.timeline)
        self.attempt(self.mask_cost)
        self.attempt(self.limit)
        types = "patches of all types"
        self.attempt(self.patches, types, self.left - 10, "", quick=self.args.quick)
        if code == UNFINISHED and self.left > 60:
            self.compare(self.left - 10)

    def compare(self, seconds: float) -> int:
        """Run bench.compare over everything, the deciding cells first. Each machine and each form has a
        folder of its own, because their cells must not be mixed."""
        off = [name.lower() for name in FORM if self.environment.get(name) == "0"]
        setting = ", without ".join([facts.machine(), *off])
        place = self.work / f"compare-{re.sub('[^A-Za-z0-9]+', '-', setting).strip('-')}"
        if not place.is_dir() and (others := sorted(self.work.glob("compare-*/"))):
            names = ", ".join(each.name for each in others)
            self.say(f"{setting}: the comparison begins anew, beside {names}")
        words = ["bench.compare", place, "--target", self.twins.target, "--draft", self.twins.draft]
        words += ["--device", self.args.device, "--seconds", int(seconds - 15)]
        words += self.quick or ["--budgets", *BUDGETS]
        words += ["--commit", self.commit] if self.commit else []
        self.unfinished = [name for name in self.unfinished if name != "compare"]
        code = self.command("compare", seconds, *words)
        if (place / "compare.md").is_file():
            shutil.copy(place / "compare.md", self.out / "compare.md")
            print((place / "compare.md").read_text()[:7000], flush=True)
        return code

    def mask_cost(self) -> None:
        """Measure what a mask costs and saves, by slots and tokens."""
        from bench.gpu_suite.__main__ import cost_table  # late: needs modules that `prepare` finds

        result = self.work / "mask-cost.json"
        words = ["bench.gpu_suite.mask_cost", self.library, self.plain_device, result]
        self.command("mask cost", LATE["mask cost"], *words, *self.quick, keep=True)
        if result.is_file():
            self.say(cost_table(json.loads(result.read_text())))

    def limit(self) -> None:
        """Check that --vram-limit holds."""
        words = ["bench.gpu_suite.limit", self.work / "limit.json", "--target", self.twins.target]
        words += ["--draft", self.twins.draft, "--device", self.args.device]
        self.command("limit", LATE["limit"], *words, keep=True)
        if (log := self.logs / "limit.txt").is_file():
            self.say(" ".join(log.read_text(errors="replace").splitlines()[-1:]))

    def timeline(self) -> None:
        """Trace a short text with speculation, to see what overlaps."""
        path = self.work / "timeline.json"
        words = ["spac.run", "--target", self.twins.target, "--draft", self.twins.draft]
        words += ["--device", self.args.device]
        words += ["--slots", "17%", "--prompt", "a", "-n", 24, "--temp", 0, "--timeline", path]
        self.command("timeline", LATE["timeline"], *words, keep=True)
        if path.is_file():
            packed = gzip.compress(path.read_bytes(), 6)
            if len(packed) <= LARGEST_FILE:
                (self.out / "timeline.json.gz").write_bytes(packed)
