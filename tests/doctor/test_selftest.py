"""The self-test tries each mechanism. It finds those that work, are wrong, crash, or never answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from spac import _core, demo, doctor, env
from spac.doctor import selftest
from spac.doctor.selftest import PLAIN, TOGETHER, Result, SelfTest, run_limited, telling_line
from spac.doctor.trial import (
    AHEAD,
    IN_PLACE,
    MASKS,
    MECHANISMS,
    STREAMED,
    Finding,
    Trial,
    without_orphans,
)
from tools.models import exchange_experts

NAMES = [PLAIN, *(mechanism.name for mechanism in MECHANISMS)]


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the switches that the tests' environment has set."""
    monkeypatch.setattr("spac.model.devices.choose_device", lambda _: simulated_device())
    monkeypatch.delenv(env.FORM.name, raising=False)
    monkeypatch.delenv(env.GATE_TIMEOUT.name, raising=False)


def simulated_device() -> _core.DeviceInfo:
    (found,) = (device for device in _core.devices() if device.name == "simulated")
    return found


class Faulty(SelfTest):
    """Self-test with a fault of the simulated device, another model, or another time limit, where a mechanism
    is on."""

    def __init__(
        self, where: str, limit_s: float = 60.0, *, fault: str = "", model: Path = demo.TARGET
    ) -> None:
        super().__init__(simulated_device(), 60.0)
        self._where, self._fault, self._model, self._limit_there_s = where, fault, model, limit_s

    def _try(self, name: str, on: frozenset[str], counter: str = "") -> Result:
        self._limit_s = self._limit_there_s if self._where in on else 60.0
        return super()._try(name, on, counter)

    def _program(self, on: frozenset[str]) -> list[str]:
        model = self._model if self._where in on else demo.TARGET
        code = f"import sys, pathlib; from spac import demo; demo.TARGET = pathlib.Path({str(model)!r})"
        return ["-c", f"{code}; from spac.doctor.selftest import main; sys.exit(main())"]

    def _environment(self, on: frozenset[str], limit_s: float) -> dict[str, str]:
        fault = self._fault if self._where in (*on, PLAIN) else ""
        return super()._environment(on, limit_s) | {env.SIMULATED_DEVICE.name: f"fault={fault}"}


def results(test: SelfTest) -> dict[str, Result]:
    return {result.name: result for result in test.run()}


def test_all_mechanisms_work_on_the_simulated_device() -> None:
    test = SelfTest(simulated_device(), 60.0)
    found = list(test.run())
    found.append(test.together(frozenset(NAMES[1:])))
    assert [result.name for result in found] == [*NAMES, TOGETHER]
    assert {result.verdict for result in found} == {"works"}, found


def test_a_gate_that_the_device_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.GATE_TIMEOUT.name, "0.4")
    monkeypatch.setattr(selftest, "MECHANISMS", (MASKS, AHEAD))
    trial = Trial(True, lambda _: Faulty(AHEAD.name, fault="no-signal"))
    found = {finding.name: finding for finding in trial.findings()}
    assert found[AHEAD.name].state == "fault"
    assert found[AHEAD.name].found.startswith("crashed: spac: launching ahead was switched off")
    assert "within 0.4 s" in found[AHEAD.name].found
    assert found[AHEAD.name].why == "add no-ahead to SPAC_FORM"
    assert [name for name in found if found[name].state == "fault"] == [AHEAD.name]
    assert found[TOGETHER].found == "works"  # they run without the one that failed

    # The next check runs as the finding advises, and the environment stays as it was.
    (demo,) = trial.heeded(lambda: iter([Finding("demo", "ok", os.environ["SPAC_FORM"])]))
    assert demo.found.split(",")[-1] == "no-ahead"
    assert not os.environ["SPAC_FORM"]


def test_a_process_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process waits at its gate for ever, and the limit ends it."""
    monkeypatch.setenv(env.GATE_TIMEOUT.name, "0")
    monkeypatch.setattr(selftest, "MECHANISMS", (MASKS, AHEAD))
    start = monotonic()
    found = results(Faulty(AHEAD.name, 2.0, fault="no-signal"))[AHEAD.name]
    assert (found.verdict, found.found) == ("no answer", "no answer within 2 s")
    assert monotonic() - start < 40


def test_the_first_process_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may compile its kernels in the first process."""
    limits = []
    monkeypatch.setattr(selftest, "run_limited", lambda *words: limits.append(words[-1]))
    test = SelfTest(simulated_device(), 1.0, 5.0)
    (first,) = test.run()
    assert (first.verdict, first.found) == ("no answer", "no answer within 5 s")
    assert test.together(frozenset()).found == "no answer within 1 s"
    assert limits == [5.0, 1.0]


def test_masks_that_are_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two experts are exchanged where masks are on."""
    monkeypatch.setattr(selftest, "MECHANISMS", (MASKS, AHEAD, IN_PLACE))
    model = exchange_experts(demo.TARGET, tmp_path / "exchanged.gguf")
    found = results(Faulty(MASKS.name, model=model))
    assert found[MASKS.name].verdict == "wrong"
    assert "off the plain split's" in found[MASKS.name].found
    assert found[AHEAD.name].verdict == "not tried"
    assert found[IN_PLACE.name].verdict == found[PLAIN].verdict == "works"


def test_a_plain_split_that_fails_ends_the_test() -> None:
    trial = Trial(True, lambda _: Faulty(PLAIN, fault="no such fault"))
    (finding,) = trial.findings()
    assert (finding.name, finding.state) == (PLAIN, "fault")
    assert "unknown fault 'no such fault'" in finding.found
    assert finding.why.startswith("give --device cpu")
    (demo,) = trial.heeded(lambda: pytest.fail("the device must not be used"))
    assert (demo.name, demo.state) == ("demo", "off")


def test_a_process_that_sleeps_is_ended_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess as s, time; print(s.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    start = monotonic()
    log = tmp_path / "log"
    assert run_limited([sys.executable, "-c", code], os.environ, log, 1.5) is None
    assert monotonic() - start < 20
    child = Path(f"/proc/{int(log.read_text())}/stat")

    def has_ended() -> bool:
        return not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"

    while not has_ended() and monotonic() - start < 20:
        sleep(0.01)
    assert has_ended()


class Pretended(SelfTest):
    """Self-test with given results by name. The other mechanisms work."""

    def __init__(self, made: Mapping[str, Result]) -> None:
        super().__init__(simulated_device())
        self._made, self.asked = made, frozenset[str]()

    def _try(self, name: str, on: frozenset[str], counter: str = "") -> Result:
        self.asked = on
        return self._made.get(name, Result(name, "works", "works"))


def pretend(*made: Result) -> tuple[dict[str, Finding], Pretended]:
    test = Pretended({result.name: result for result in made})
    return {finding.name: finding for finding in Trial(True, lambda _: test).findings()}, test


def test_what_the_user_has_switched_off_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAC_FORM", "no-in-place")
    found, test = pretend(Result(IN_PLACE.name, "no answer", "no answer within 15 s"))
    assert found[IN_PLACE.name].state == "off"
    assert found[IN_PLACE.name].why == "not used: SPAC_FORM switches in-place off"
    assert IN_PLACE.name not in test.asked
    monkeypatch.setenv("SPAC_FORM", "no-in-place,no-masks")
    found, test = pretend()
    assert found[AHEAD.name].why == "not used: SPAC_FORM switches masks off"  # the mechanism needs masks
    assert not {MASKS.name, AHEAD.name, IN_PLACE.name} & test.asked


def test_every_failure_says_what_to_do() -> None:
    found, test = pretend(
        Result(STREAMED.name, "crashed", "crashed: x"), Result(TOGETHER, "wrong", "wrong: y"),
        Result(IN_PLACE.name, "idle", "not there"),
    )  # fmt: skip
    assert found[STREAMED.name].why == "give --stream-batch 0"
    assert found[TOGETHER].why.startswith("add no-ahead to SPAC_FORM, then")
    assert found[IN_PLACE.name].state == "off"
    assert test.asked == frozenset(NAMES[1:]) - {STREAMED.name, IN_PLACE.name}
    assert all(bool(finding.why) == (finding.state != "ok") for finding in found.values())
    assert without_orphans([AHEAD.name]) == frozenset()


def test_by_default_the_simulated_device_is_not_tried() -> None:
    assert list(Trial(None, lambda _: pytest.fail("not asked for")).findings()) == []
    assert list(Trial(False, lambda _: pytest.fail("not asked for")).findings()) == []


@pytest.mark.parametrize("failing", [False, True])
def test_the_option_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: bool
) -> None:
    made = [Result(MASKS.name, "no answer", "no answer within 15 s")] if failing else []
    monkeypatch.setattr(selftest, "SelfTest", lambda _: Pretended({result.name: result for result in made}))
    for check in (
        "host.library", "host.llama_cpp_python", "devices.gpu", "devices.vram", "host.memory",
        "host.cpu", "_demo",
    ):  # fmt: skip
        monkeypatch.setattr(f"spac.doctor.{check}", lambda *_: iter(()))
    assert doctor.main(["--self-test"]) == int(failing)
    out = capsys.readouterr().out
    assert ("device masks        no answer within 15 s" in out) == failing
    assert ("add no-masks to SPAC_FORM" in out) == failing


def test_the_error_and_the_line_that_tells(tmp_path: Path) -> None:
    wanted = np.array([[1.0, 2.0, 4.0]], np.float32)
    assert selftest.error(wanted, wanted) == 0
    assert selftest.error(np.full_like(wanted, np.nan), wanted) == float("inf")
    log = tmp_path / "log"
    for text, line in (
        ("a\nCUDA error: x\nerror: then y\n", "CUDA error: x"),
        ("a\nb\n\n", "b"),
        ("", "it says nothing"),
    ):
        log.write_text(text)
        assert telling_line(log) == line
