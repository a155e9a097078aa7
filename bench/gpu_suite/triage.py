"""Run the first visit to a GPU: report what works, what fails and why, within some minutes (session.py
--triage).

Everything that can fail is tried once, riskiest first, each in a process of its own. Nothing is tried again,
and nothing is compiled twice. Faults are repaired before the visit that measures.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from bench.gpu_suite import probes, watched
from bench.gpu_suite.course import TWIN_TYPES, Course
from bench.gpu_suite.parts import ROOT

CELLS = (
    "spac logistic, draft",
    "spac logistic, no draft",
    "llama.cpp, experts on CPU",
    "llama.cpp --n-cpu-moe",
)
"""Parts of the names of bench.compare's rows that run. llama.cpp's tuned rows need the others."""


class Triage(Course):
    """One call. Every part reports its result."""

    def run(self) -> int:
        """Run the whole call; return the exit code."""
        with self.keeper:
            self.keeper.note("calls", number=self.keeper.done.get("calls", {}).get("number", 0) + 1)
            self.facts()
            asked = threading.Thread(target=self.probes, daemon=True)
            if self.on_gpu:
                asked.start()
            if self.prepare():
                self.twins = self.begin_twins()
                try:
                    if self.build():
                        self.attempt(self.smoke)
                        types = ",".join(TWIN_TYPES)
                        self.attempt(self.patches, "patches of the twins' types", 60, types, quick=True)
                        self.attempt(self.choose_form)
                        self.attempt(self.full_size)
                finally:
                    self.twins.end()
            if self.on_gpu:
                asked.join(10)
            self.say(f"failed: {', '.join(dict.fromkeys(self.failed)) or 'nothing'}")
        return 1 if self.failed else 0

    def build(self) -> bool:
        """Build, and check that the result can be imported. Report where it crashes if it does."""
        return super().build() and self.imports()

    def imports(self) -> bool:
        """Import spac's module in a process of its own."""
        words: list[object] = [sys.executable, "-c", "import spac; from spac import _core; print(_core)"]
        ended = watched.run(words, self.logs / "import.txt", 30, cwd=ROOT, environment=self.environment)
        if ended.code == 0:
            return True
        self.failed.append("import")
        self.say(f"the module cannot be imported: {ended.fault}")
        if debugged := watched.again(words):
            log = self.logs / "import-again.txt"
            more = watched.run(debugged[0], log, 60, cwd=ROOT, environment=self.environment)
            self.say(more.output[-3500:])
        return False

    def probes(self) -> None:
        """Ask the driver, beside the build."""
        with (self.out / "facts.txt").open("a") as file:
            for name in probes.QUESTIONS:
                text = probes.ask(name, self.work)
                file.write(text + "\n")
                file.flush()
                self.say(text)

    def full_size(self) -> None:
        """Run both sides on the twin: a few cells, the card's profile of both, and a timeline."""
        code = self.twins.wait(max(1.0, self.left - 30))
        self.say(f"twins: {'not done in time' if code is None else self.twins.said}")
        if code != 0:
            self.failed.append("twins")
            return
        self.attempt(self.timeline)
        self.attempt(self.profiles)
        words = ["bench.compare", self.work / "compare-triage", "--target", self.twins.target]
        words += ["--draft", self.twins.draft, "--device", self.args.device, "--seconds", int(self.left - 25)]
        words += ["--budgets", "17%", "--tokens", 96, "--texts", 2, *self.quick, "--only", *CELLS]
        words += ["--commit", self.commit] if self.commit else []
        words += ["--contexts", 64 if self.args.quick else 512]
        self.command("compare", self.left - 10, *words)
        page = self.work / "compare-triage" / "compare.md"
        if page.is_file():
            (self.out / "compare.md").write_text(page.read_text())
            print(page.read_text()[:5000], flush=True)

    def profiles(self) -> None:
        """Profile the card during some steps of spac and of llama.cpp."""
        reference = Path("python/spac/lib/reference").resolve()
        for side in ("spac", "llama.cpp"):
            name = f"profile {side}"
            result = self.out / f"profile-{side}.json.gz"
            words: list[object] = [
                "bench.gpu_suite.step_profile",
                result,
                side,
                "--target",
                self.twins.target,
            ]
            words += ["--device", self.args.device]
            words += ["--n-cpu-moe", 40] if side == "llama.cpp" else []
            before = dict(self.environment)
            if side == "llama.cpp":
                from bench.compare.cells import environment

                self.environment |= environment(reference)
                self.environment["PYTHONPATH"] = before["PYTHONPATH"]
            try:
                self.command(name, 50, *words)
            finally:
                self.environment = before
            log = self.logs / f"{name.replace(' ', '-')}.txt"
            if log.is_file():
                self.say(f"{name}:\n" + log.read_text(errors="replace")[-3500:])
