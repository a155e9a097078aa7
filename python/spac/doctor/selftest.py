"""Try every mechanism of the split on a device, each in a process of its own that has a time limit.

A process evaluates a few tokens of the bundled demo pair with a quarter of the experts resident. Its logits
are compared with those of the plain split, which uses none of the mechanisms. `spac doctor` shows the
results. The processes run `python -m spac.doctor.selftest`, which is not a program for users.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from spac import _core, demo, env
from spac.doctor.trial import LOOKAHEAD, MECHANISMS, STREAMED, settings_of, there_on, with_needs
from spac.errors import DeviceError, one_line
from spac.machine.arrays import Float32Array

if TYPE_CHECKING:
    from spac.model.pair import ModelPair

LIMIT_S = 15.0
"""The time limit of one process in seconds."""
FIRST_LIMIT_S = 90.0
"""The same for the first process, because a driver may compile kernels at their first use, as Vulkan's do."""
BOUND = 5e-3
"""The largest normalized mean square error of logits that passes.

CPU and device round differently, and near ties of the router may change.
"""
BATCHES = (40, 4, 1, 1)
"""The tokens of each batch: a prompt long enough for prefill streaming, a verification, single tokens."""
SLOTS = 4
"""The number of experts per resident expert."""
STREAM_TOKENS = 32
PLAIN = "plain split"
TOGETHER = "together"
_LAYERS_AHEAD = 1  # the demo pair has few layers
_KILLED_S = 5.0  # a killed process inside a driver's call may not end
_TELLS = re.compile(r"error|ASSERT|abort|spac: |illegal|Fatal", re.IGNORECASE)

Verdict = Literal["works", "wrong", "crashed", "no answer", "idle", "not tried"]
Logits = Float32Array


@dataclass(frozen=True)
class Result:
    """The outcome of one mechanism's test. `found` says it in words."""

    name: str
    verdict: Verdict
    found: str

    @property
    def failed(self) -> bool:
        """True if the mechanism must not be used on this device."""
        return self.verdict in ("wrong", "crashed", "no answer")


class SelfTest:
    """Runs the processes that test one device."""

    def __init__(
        self, device: _core.DeviceInfo, limit_s: float = LIMIT_S, first_limit_s: float = FIRST_LIMIT_S
    ) -> None:
        """Prepare the test. The limits are those of one process, and of the first one, in seconds."""
        self._device, self._limit_s, self._first_limit_s = device, limit_s, first_limit_s
        self._plain: Logits | None = None

    def run(self) -> Iterator[Result]:
        """Try the plain split, and then each mechanism. Stop if the plain split fails."""
        plain = self._try(PLAIN, frozenset())
        yield plain
        if plain.failed:
            return
        failed = set[str]()
        for mechanism in MECHANISMS:
            if not there_on(mechanism, self._device):
                result = Result(mechanism.name, "idle", "not there")
            elif failed.intersection(mechanism.needs):
                result = Result(mechanism.name, "not tried", "not tried")
            else:
                result = self._try(mechanism.name, with_needs(mechanism), mechanism.counter)
            if result.failed:
                failed.add(result.name)
            yield result

    def together(self, names: frozenset[str]) -> Result:
        """Try these mechanisms together, after `run`."""
        return self._try(TOGETHER, names)

    def _try(self, name: str, on: frozenset[str], counter: str = "") -> Result:
        limit_s = self._first_limit_s if name == PLAIN else self._limit_s
        with tempfile.TemporaryDirectory(prefix="spac-selftest-") as folder:
            file, log = Path(folder, "result.npz"), Path(folder, "log.txt")
            words = ["--device", self._device.name, "--on", ",".join(sorted(on)), "--result", str(file)]
            command = [sys.executable, *self._program(on), *words]
            code = run_limited(command, self._environment(on, limit_s), log, limit_s)
            if code is None:
                return Result(name, "no answer", f"no answer within {limit_s:g} s")
            if code != 0 or not file.is_file():
                return Result(name, "crashed", f"crashed: {telling_line(log)}")
            with np.load(file) as kept:
                logits, counters = kept["logits"], json.loads(str(kept["counters"]))
        return self._verdict(name, logits, not counter or counters[counter] > 0)

    def _verdict(self, name: str, logits: Logits, at_work: bool) -> Result:
        if self._plain is None:
            if not np.isfinite(logits).all():
                return Result(name, "wrong", "wrong: its logits are no numbers")
            self._plain = logits
        difference = error(logits, self._plain)
        if difference > BOUND:
            return Result(name, "wrong", f"wrong: its logits are {difference:.1e} off the plain split's")
        return Result(name, "works", "works") if at_work else Result(name, "idle", "not there")

    def _program(self, on: frozenset[str]) -> list[str]:
        """Return Python's arguments that start the program of a process."""
        return ["-m", "spac.doctor.selftest"]

    def _environment(self, on: frozenset[str], limit_s: float) -> dict[str, str]:
        more = settings_of(on) | {"GGML_NO_BACKTRACE": "1", "PYTHONFAULTHANDLER": "1"}
        if env.GATE_TIMEOUT.get() is None:  # leaves the library time to say where it waits
            more[env.GATE_TIMEOUT.name] = f"{limit_s / 2:g}"
        return {**os.environ, **more}


def run_limited(
    words: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float
) -> int | None:
    """Run a process and return its exit code; None if it ran past the limit and was killed.

    Its output goes to `log`. A process that does not end after the kill is left behind.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)


def telling_line(log: Path) -> str:
    """Return the first line of a log that explains a failure, else its last line.

    The first such line names the cause. Later ones name its consequences.
    """
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if _TELLS.search(line)]
    return one_line((telling or lines[-1:] or ["it says nothing"])[0])[:300]


def error(found: Logits, wanted: Logits) -> float:
    """Return the normalized mean square error; infinity if it is not a finite number."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    value = float(np.square(a - b).sum() / np.square(b - b.mean()).sum())
    return value if np.isfinite(value) else float("inf")


# The work of the processes


def evaluate(device: str, on: frozenset[str]) -> tuple[Logits, dict[str, int]]:
    """Return the logits float32 [tokens, n_vocab] of the fixed tokens, and the counters of the experts.

    The caller has set the environment to `settings_of(on)`.
    """
    from spac.config import EngineConfig
    from spac.model.pair import ModelPair

    stream_tokens = STREAM_TOKENS if STREAMED.name in on else 0
    config = EngineConfig(
        target=demo.TARGET, device=device, slots=0, ctx=512, draft_length=0, stream_batch=stream_tokens,
        threads=min(2, os.cpu_count() or 1), paging="off",
    )  # fmt: skip
    pair = ModelPair(config, None)
    try:
        experts = pair.experts
        assert experts is not None  # the demo pair's target has experts
        make_resident(experts)
        experts.set_lookahead(_LAYERS_AHEAD if LOOKAHEAD.name in on else 0)
        experts.set_stream_tokens(stream_tokens)  # a new pair does not stream
        experts.set_step_tokens(max(BATCHES[1:]))  # larger batches are prompts
        tokens = np.random.default_rng(0).integers(0, 1000, sum(BATCHES)).tolist()
        found, at = [], 0
        for n in BATCHES:
            found.append(decode(pair, tokens[at : at + n], at))
            at += n
        return np.concatenate(found), dict(experts.stats)
    finally:
        pair.close()


def make_resident(experts: _core.Experts) -> None:
    """Make a quarter of the experts resident, some of every layer."""
    counts = [layer.n_expert for layer in experts.layers]
    experts.attach_slots(sum(counts) // SLOTS)
    priority = np.tile(np.arange(max(counts)) % SLOTS, (len(counts), 1)).astype(np.int32)
    experts.submit(priority, np.zeros(len(counts), np.int32))
    experts.settle(LIMIT_S)


def decode(pair: ModelPair, tokens: Sequence[int], position: int) -> Logits:
    """Return the logits float32 [n, n_vocab] of one batch. Raise DeviceError if the evaluation fails."""
    context = pair.target_context.pointer
    if status := _core.decode(context, tokens, position, logits=True):
        raise DeviceError(f"llama_decode returned {status} at token {position}")
    return _core.logits(context, len(tokens))


def _echo(level: int, text: bytes, _: object) -> None:
    """Write warnings and errors to stderr: a driver's messages come only through the log."""
    if level in (3, 4):
        os.write(2, text)


def main() -> int:
    """Evaluate the tokens in this process, write the result to a file, and return the exit code."""
    parser = argparse.ArgumentParser(prog="spac.doctor.selftest", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True)
    parser.add_argument("--on", default="", help="names of mechanisms, with commas between")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    on = frozenset(filter(None, options.on.split(",")))

    from spac.model.c_api import echo_log

    echo_log(_echo)
    try:
        logits, counters = evaluate(options.device, on)
    except Exception as problem:  # any error is reported on one line
        print(f"error: {one_line(str(problem)) or type(problem).__name__}", file=sys.stderr)
        return 1
    finally:
        echo_log(None)
    np.savez(options.result, logits=logits, counters=json.dumps(counters))
    return 0


if __name__ == "__main__":
    sys.exit(main())
