"""Shows that tests find faults: changes one line of the product at a time, and runs the tests of its room.

    python -m tools.mutate            all mutations
    python -m tools.mutate 3 17       these, by their numbers

It works on a copy of the tree with the compiled parts of this one. A change in csrc is compiled as build/dev
is (CONTRIBUTING). The program prints a line for each mutation: the test that found it, and in how many
seconds, or that none did. The exit code is 1 if one was not found.
Whoever makes tests fewer or shorter runs it before and after.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = Path("python/spac/lib/libllama.so")
MOST_S = 120
"""Seconds after which tests are ended; without a mutation they take a tenth of that."""


@dataclass(frozen=True)
class Mutation:
    """A text that stands once in a file, one in its place, and the tests that should fail.

    The file's name is that below python/spac, or begins with csrc/.
    """

    file: str
    tests: str
    old: str
    new: str

    def path(self, root: Path) -> Path:
        """Return the file's path in a tree."""
        return root / self.file if self.file.startswith("csrc/") else root / "python/spac" / self.file

    def apply(self, root: Path) -> str:
        """Change the file in a tree, and return its former text. Raise SystemExit if it does not fit."""
        path = self.path(root)
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.file}: '{self.old}' stands there {text.count(self.old)} times, not once")
        path.write_text(text.replace(self.old, self.new))
        return text


M = Mutation  # a row of the table
MUTATIONS = (
    M("scheduler/base.py", "tests/scheduler",
      "wanted = priority >= threshold[", "wanted = priority > threshold["),
    M("scheduler/base.py", "tests/scheduler",
      "int(counts[members].sum()))", "int(counts[members].sum()) - 1)"),
    M("scheduler/price.py", "tests/scheduler",
      "n * min(each.cpu_expert_s, each", "n * max(each.cpu_expert_s, each"),
    M("scheduler/lru.py", "tests/scheduler tests/replay",
      "np.full(n_layer, n_expert + 1,", "np.full(n_layer, n_expert,"),
    M("scheduler/ewma.py", "tests/scheduler", "elif n_slots < values.size:", "elif n_slots <= values.size:"),
    M("scheduler/whole_layers.py", "tests/scheduler",
      "gain[i] < -(pool.n_expert[i] * price)", "gain[i] > -(pool.n_expert[i] * price)"),
    M("scheduler/whole_layers.py", "tests/scheduler",
      "ties[: n - np.count_nonzero(largest)]", "ties[np.count_nonzero(largest) - n :]"),
    M("scheduler/demand.py", "tests/scheduler tests/replay",
      "np.maximum(verified - 1, 0)", "np.maximum(verified, 0)"),
    M("scheduler/driver.py", "tests/scheduler tests/engine/test_schedule_beside.py",
      "            if step != self._step:\n", "            if step > self._step:\n"),
    M("papers/utility.py", "tests/papers", "rises = change >= self.up", "rises = change > self.up"),
    M("papers/balancer.py", "tests/papers",
      "np.maximum(t_cpu, t_gpu) + drafting", "np.minimum(t_cpu, t_gpu) + drafting"),
    M("papers/balancer.py", "tests/papers", "(uploads <= room[", "(uploads < room["),
    M("papers/sp_moe.py", "tests/papers", "fits &= wanted <= pool_slots", "fits &= wanted < pool_slots"),
    M("papers/sp_moe.py", "tests/papers", "np.cumsum(critical * upload_s) <=", "critical * upload_s <="),
    M("papers/moe_speq.py", "tests/papers", "np.where(uses > 0, _PREDICTED", "np.where(uses > 1, _PREDICTED"),
    M("papers/fate.py", "tests/papers", "elif known >= self.size:", "elif known > self.size:"),
    M("papers/moe_infinity.py", "tests/papers", "if view.text != self._text:", "if view.text == self._text:"),
    M("governor/roofline.py", "tests/governor", "k if k >= self._shortest else 0", "k"),
    M("governor/acceptance.py", "tests/governor", "reach + (1.0 - reach) * hope", "reach"),
    M("costs/robust.py", "tests/costs", "max(SHARE, 1 / self._seen[i])", "SHARE"),
    M("costs/robust.py", "tests/costs",
      "units[i] + (b[i] - rest) / sums[i], LEAST", "units[i] - (b[i] - rest) / sums[i], LEAST"),
    M("engine/text_stream.py", "tests/engine/test_text.py",
      "(found[0], -len(found[1]))", "(found[0], len(found[1]))"),
    M("engine/prompt_graphs.py", "tests/engine/test_prompt_graphs.py",
      "        if n_failed:\n", "        if not n_failed:\n"),
    M("model/placement.py", "tests/model/test_llama_cpp_settings.py",
      "max(0, min(wanted - 1, n_layer))", "max(0, min(wanted, n_layer))"),
    M("model/fit_layers.py", "tests/model/test_llama_cpp_settings.py",
      "fits = loaded = tried", "loaded = tried"),
    M("model/remote.py", "tests/rpc_server/test_layers.py",
      "min(most, max(1, round(", "min(most, max(0, round("),
    M("serve/request_queue.py", "tests/serve/test_request_queue.py",
      "self._next()  # it was admitted", "pass  # it was admitted"),
    M("serve/custom_tools.py", "tests/serve/test_custom_tools.py",
      '["name"] in self._names:\n                    function',
      '["name"] not in self._names:\n                    function'),
    M("machine/control_groups.py", "tests/machine/test_cpu.py tests/machine",
      "yield from (parent for", "yield from (folder for"),
    M("machine/files.py", "tests/cli/test_hostile_files.py", "stat.S_ISREG(mode) or", "True or"),
    M("csrc/core/slot_table.cpp", "tests/core",
      "pool.victims.front().priority < entry.priority", "pool.victims.front().priority <= entry.priority"),
    M("csrc/core/slot_table.cpp", "tests/core",
      "count * expert_bytes <= (count + 1) * copy_bytes", "count * expert_bytes <= count * copy_bytes"),
    M("csrc/core/pinned_ranges.cpp", "tests/core", "border <= next->end", "border < next->end"),
    M("csrc/core/residency.cpp", "tests/core", "slot >= 0 ? 1 : -1", "slot >= 0 ? 1 : 0"),
    M("csrc/core/logistic.cpp", "tests/scheduler tests/core",
      "if (n >= std::accumulate(bins", "if (n > std::accumulate(bins"),
    M("csrc/backend/experts/demand.cpp", "tests/backend tests/core tests/engine/test_engine.py",
      "misses_cpu_ += first && !on_device", "misses_cpu_ += !on_device"),
    M("csrc/backend/split/host_part.cpp", "tests/backend",
      "mask == nullptr || mask->slot_of[ids[u]] < 0;", "mask == nullptr || mask->slot_of[ids[u]] <= 0;"),
    M("csrc/session/grammar_text.cpp", "tests/session/test_grammar_check.py",
      "groups_.size() > max_groups", "groups_.size() > 10 * max_groups"),
    M("csrc/hooks/loop_drafts.cpp", "tests/governor tests/engine/test_engine.py",
      "std::min(requests[i].n_max, longest)", "requests[i].n_max"),
)  # fmt: skip


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the tree's files, with links to its compiled parts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        (root / LIBRARY).parent.mkdir()
        for name in ("_core*.so", "lib/*"):
            for part in (ROOT / "python/spac").glob(name):
                (root / part.relative_to(ROOT)).symlink_to(part)
        (root / "build").symlink_to(ROOT / "build")
        yield root


def build(file: str, root: Path) -> None:
    """Build the library of a copy with this source of csrc, by the commands of this tree's build."""
    folder, made = ROOT / "build/dev", root / "mutated.o"
    asked = ["ninja", "-t", "commands", str(ROOT / LIBRARY)]
    commands = subprocess.run(
        asked, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    source, link = str(ROOT / file), commands[-1]
    compiler = next(each for each in commands if each.endswith(f" -c {source}"))
    former = re.findall(r"-o (\S+\.o)", compiler)[0]
    (root / LIBRARY).unlink()
    for command in (
        compiler.replace(f" -c {source}", f" -c {root / file}"),
        link.replace(str(ROOT / LIBRARY), str(root / LIBRARY)),
    ):
        subprocess.run(command.replace(former, str(made)), cwd=folder, shell=True, check=True)


def found(mutation: Mutation, root: Path) -> str:
    """Return the first test that fails with a mutation, or what happens else; "" if nothing does."""
    before = mutation.apply(root)
    try:
        if mutation.file.startswith("csrc/"):
            build(mutation.file, root)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation.tests.split()],
            cwd=root, capture_output=True, text=True, check=False, timeout=MOST_S,
            env={**os.environ, "PYTHONPATH": f"{root / 'python'}:{root}", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    finally:
        mutation.path(root).write_text(before)
        if mutation.file.startswith("csrc/"):
            (root / LIBRARY).unlink(missing_ok=True)
            (root / LIBRARY).symlink_to(ROOT / LIBRARY)
    lines = [
        line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]
    return lines[0] if lines and done.returncode == 1 else ""


def main(arguments: Sequence[str]) -> int:
    """Run the mutations of these numbers, all by default, and return the exit code."""
    every = range(1, len(MUTATIONS) + 1)
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "numbers", type=int, nargs="*", choices=every, metavar=f"1..{len(every)}", default=every
    )
    numbers = parser.parse_args(arguments).numbers
    missed = 0
    with copied() as root:
        for number in numbers:
            mutation, began = MUTATIONS[number - 1], time.monotonic()
            test = found(mutation, root)
            missed += not test
            seconds = time.monotonic() - began
            print(f"{number:3} {mutation.file:28} {seconds:6.1f} s  {test or 'NOT FOUND'}", flush=True)
    print(f"{len(numbers) - missed} of {len(numbers)} found")
    return min(missed, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
