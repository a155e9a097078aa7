"""The findings of the self-test: which mechanisms work and are used, and what to switch off."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spac.doctor.mechanisms import AHEAD, BY_NAME, used_on, why_unused, without_orphans
from spac.env import FORM

if TYPE_CHECKING:
    from spac._core import DeviceInfo
    from spac.doctor.selftest import Result, SelfTest


State = Literal["ok", "off", "fault"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `why` says what is off and what to do. It is empty for "ok"."""

    name: str
    state: State
    found: str
    why: str = ""


class Trial:
    """Runs the self-test of the default device, and applies its results to the later checks."""

    def __init__(self, wanted: bool | None, make: Callable[[DeviceInfo], SelfTest] | None = None) -> None:
        """Prepare the test, which runs if `wanted` is True.

        None runs it on GPUs, not on the simulated device. `make` replaces the self-test in tests.
        """
        self._wanted, self._make = wanted, make
        self._unusable = ""
        self._off: list[str] = []

    def findings(self) -> Iterator[Finding]:
        """Try every mechanism, and yield the finding of each as soon as it is known."""
        if self._wanted is False or importlib.util.find_spec("spac.demo") is None:
            return
        from spac.doctor import selftest
        from spac.model.devices import choose_device

        device = choose_device("auto") or choose_device("simulated")
        if device is None or (device.shares_host_cores and not self._wanted):
            return
        test = self._make(device) if self._make is not None else selftest.SelfTest(device)
        working = set()
        for result in test.run():
            if result.name == selftest.PLAIN:
                yield self._plain(result, device)
                continue
            yield self._one(result, device)
            mechanism = BY_NAME[result.name]
            left_out = mechanism.refused or (mechanism.by_choice and not mechanism.chosen)
            if result.verdict == "works" and not left_out:
                working.add(result.name)
        if together := without_orphans(working):
            yield self._together(test.together(together))

    def heeded(self, check: Callable[[], Iterator[Finding]], name: str = "demo") -> Iterator[Finding]:
        """Run the check that loads a model, with the failed mechanisms switched off."""
        if self._unusable:
            yield Finding(name, "off", "not run", self._unusable)
            return
        before = os.environ.get(FORM.name, "")
        os.environ[FORM.name] = ",".join([before, *self._off])
        try:
            yield from check()
        finally:
            os.environ[FORM.name] = before

    def _plain(self, result: Result, device: DeviceInfo) -> Finding:
        if not result.failed:
            return Finding(result.name, "ok", result.found)
        self._unusable = f"the plain split fails on {device.name}"
        return Finding(result.name, "fault", result.found, "give --device cpu: this device cannot be used")

    def _one(self, result: Result, device: DeviceInfo) -> Finding:
        mechanism = BY_NAME[result.name]
        if result.failed and mechanism.part:
            self._off.append(f"no-{mechanism.part}")
        if mechanism.refused:
            return Finding(result.name, "off", result.found, why_unused(mechanism))
        if result.failed:
            return Finding(result.name, "fault", result.found, mechanism.remedy)
        if result.verdict == "not tried":
            return Finding(result.name, "off", result.found, f"it needs {' and '.join(mechanism.needs)}")
        if result.verdict == "idle":
            return Finding(result.name, "off", result.found, f"{device.name} does not do it")
        if not used_on(mechanism, device):
            return Finding(result.name, "off", result.found, why_unused(mechanism))
        return Finding(result.name, "ok", result.found)

    def _together(self, result: Result) -> Finding:
        if not result.failed:
            return Finding(result.name, "ok", result.found)
        self._unusable = "the mechanisms that work alone fail together"
        return Finding(
            result.name, "fault", result.found, f"{AHEAD.remedy}, then switch off others, one by one"
        )
