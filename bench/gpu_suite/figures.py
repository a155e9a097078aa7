"""Run the visit that measures: the figures of issue and README, the deciding ones first (session.py
--figures).

It is called twice back to back on one machine. The second call finds build, twins and cells, and continues.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence

from bench.gpu_suite import facts
from bench.gpu_suite.triage import Triage

THREADS = (14, 16, 12, 8)  # numbers tried on each side; the first one is used where a sweep fails
FORMS = ("ahead, looking ahead", "by copies", "in place", "own kernels", "all, masks", "streamed")
"""Parts of the names of the smoke test's forms that are tried before anything is measured."""
PROFILES: dict[str, dict[str, str]] = {
    "in place": {},
    "by own kernels": {"SPAC_EXCHANGE_KERNELS": "1"},
    "by copies": {"SPAC_IN_PLACE": "0"},
    "scheduler between steps": {"SPAC_SCHEDULE_BESIDE": "0"},
    "in place again": {},
}
"""Names of profiles, with the variables of each."""
COMING_BACK = ("in place", "by own kernels")
"""The profiles that are brought back: a session brings back eight files at most."""
DECIDING = (
    "spac logistic, draft", "spac logistic, governor", "spac logistic, no draft", "llama.cpp, experts on CPU",
    "llama.cpp --n-cpu-moe",
)  # fmt: skip
ELSEWHERE = ("spac logistic, governor", "spac logistic, no draft", "llama.cpp, experts on CPU",
             "llama.cpp --n-cpu-moe, draft", "llama.cpp --n-cpu-moe --no-host")  # fmt: skip
"""Parts of the names of rows that run on the first budget and context, and on the others."""
BUDGETS = ("10%", "25%", "50%", "100%")
SCHEDULERS = ("logistic", "moe-spac", "lru")
LENGTHS = ("0", "2", "4", "8", "roofline")


class Figures(Triage):
    """One call. Each part is stopped after its time, and the next one begins."""

    def run(self) -> int:
        """Run the whole call; return the exit code."""
        with self.keeper:
            self.keeper.note("calls", number=self.keeper.done.get("calls", {}).get("number", 0) + 1)
            self.facts()
            if self.prepare():
                self.twins = self.begin_twins()
                try:
                    if self.build() and self.checked() and self.twins.wait(self.left) == 0:
                        self.measure()
                finally:
                    self.twins.end()
            self.say(f"failed: {', '.join(dict.fromkeys(self.failed)) or 'nothing'}")
        return 1 if self.failed else 0

    def checked(self) -> bool:
        """Run the forms that are measured, once. Return True if they were right."""
        result = self.work / "smoke.json"
        words = ["bench.gpu_suite.smoke", result, "--device", self.args.device, "--seconds", 60]
        words += ["--logs", self.logs, "--at-once", 4, "--threads", 3, "--forms", *FORMS]
        code = self.command("smoke", 80, *words, keep=True)
        self.say((self.logs / "smoke.txt").read_text(errors="replace")[-2500:])
        if code == 0 or not result.is_file():
            return code == 0
        from bench.gpu_suite.smoke import BOUND  # late: needs modules that `prepare` finds

        rows = json.loads(result.read_text())
        copies = [row for row in rows if "by copies" in row["name"]]
        right = all(not row["fault"] and row["error"] <= BOUND for row in copies)
        if right:
            self.say("hand-overs in place are wrong here: what follows is measured with copies")
            self.environment["SPAC_IN_PLACE"] = "0"
        return right

    def measure(self) -> None:
        """Measure as much as time allows, the deciding figures first."""
        self.attempt(self.compared, 20 if self.args.quick else 300, ["17%"], [512], DECIDING)
        self.attempt(self.profiled)
        self.attempt(self.timeline)
        self.attempt(self.grid, "17%", SCHEDULERS, LENGTHS, 100)
        for budget in BUDGETS:
            self.attempt(self.compared, 120, [budget], [512], ELSEWHERE)
        for budget in BUDGETS:
            self.attempt(self.grid, budget, SCHEDULERS[:1], LENGTHS, 60)
        self.attempt(self.compared, 150, ["17%"], [4096], ELSEWHERE)
        self.attempt(self.compared, 100, ["17%"], [16384], ELSEWHERE[:1] + ELSEWHERE[2:3])
        self.attempt(self.mask_cost)
        self.attempt(self.limit)
        self.attempt(self.patches, "patches of all types", self.left - 10, "", quick=self.args.quick)

    def compared(
        self, seconds: float, budgets: Sequence[str], contexts: Sequence[int], rows: Sequence[str]
    ) -> None:
        """Run bench.compare on some cells, with the results of earlier calls on this machine."""
        name = f"compare {' '.join(budgets)} {' '.join(map(str, contexts))}"
        if self.keeper.ran(name) or self.left < 40:
            return
        seconds = min(seconds, self.left - 10)
        place = self.work / f"compare-{re.sub('[^A-Za-z0-9]+', '-', facts.machine()).strip('-')}"
        words = ["bench.compare", place, "--target", self.twins.target, "--draft", self.twins.draft]
        words += ["--device", self.args.device, "--seconds", int(seconds - 5), "--threads", *self.counts]
        words += ["--tokens", 128, "--texts", 4, *self.quick, "--only", *rows]
        words += ["--budgets", *budgets, "--contexts", *contexts]
        words += ["--commit", self.commit] if self.commit else []
        self.command(name, seconds, *words, keep=True)
        page = place / "compare.md"
        if page.is_file():
            text = page.read_text()
            (self.work / f"page-{name.replace(' ', '-').replace('%', '')}.txt").write_text(text)
            with (self.out / "compare.md").open("a") as file:
                file.write(text + "\n")
            print(text[:3500], flush=True)

    @property
    def counts(self) -> list[int]:
        """Return numbers of threads to try. More threads than cores take a thousand times as long."""
        return [n for n in THREADS if n <= self.args.jobs] or [max(1, self.args.jobs - 1)]

    def threads(self, side: str) -> int:
        """Return the number that bench.compare found best for a side."""
        for path in self.work.glob("compare-*/cells/threads.json"):
            chosen = json.loads(path.read_text())["chosen"]
            if side in chosen:
                return int(chosen[side])
        return self.counts[0]

    def profiled(self) -> None:
        """Profile the card in some steps of spac in each way, and print each one's phases.

        The first way comes again at the end, since the machine may change meanwhile. Two profiles come back.
        """
        found = []
        for form, variables in PROFILES.items():
            name, result = f"profile {form}", self.work / f"profile-{form.replace(' ', '-')}.json.gz"
            words = ["bench.gpu_suite.step_profile", result, "spac", "--target", self.twins.target]
            words += ["--device", self.args.device, "--threads", self.threads("spac")]
            before = dict(self.environment)
            self.environment |= variables
            try:
                self.command(name, 45, *words, keep=True)
            finally:
                self.environment = before
            log = self.logs / f"{name.replace(' ', '-')}.txt"
            if log.is_file():
                self.say(f"{name}:\n" + log.read_text(errors="replace")[-1800:])
            if result.is_file():
                found.append(result)
                if form in COMING_BACK:
                    shutil.copy(result, self.out / result.name)
        if found:
            self.command("layer phases", 20, "bench.gpu_suite.layer_phases", *found, keep=True)
            log = self.logs / "layer-phases.txt"
            self.say(log.read_text(errors="replace")[-2500:] if log.is_file() else "no time for the phases")

    def grid(self, budget: str, schedulers: Sequence[str], lengths: Sequence[str], seconds: float) -> None:
        """Compare schedulers and draft lengths on one loaded model (spac bench)."""
        name = f"grid {budget}"
        if self.left < 40:
            return
        words = ["spac.bench", "--target", self.twins.target, "--draft", self.twins.draft]
        words += ["--device", self.args.device, "--slots", budget, "--schedulers", *schedulers]
        words += ["--draft-lengths", *lengths, "--baseline", "none", "--repeat", 2, "-n", 96, "--prompt", "a"]
        words += ["--threads", self.threads("spac"), "--json", self.work / f"grid-{budget[:-1]}.txt", "-q"]
        self.command(name, min(seconds, self.left - 10), *words, keep=True)
        log = self.logs / f"{name.replace(' ', '-')}.txt"
        if log.is_file():
            self.say(log.read_text(errors="replace")[-3000:])
