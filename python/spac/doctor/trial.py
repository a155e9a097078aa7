"""The mechanisms of the split that can be switched off alone, and what the self-test finds of them.

The findings tell which mechanisms work and are used, and what to switch off.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spac import env

if TYPE_CHECKING:
    from spac._core import DeviceInfo
    from spac.doctor.selftest import Result, SelfTest


@dataclass(frozen=True)
class Mechanism:
    """One way to make the split faster. The plain split uses none."""

    name: str
    part: str = ""
    """The part of SPAC_FORM that it is; "" if an option switches it."""
    option: str = ""
    """The option that switches it off if it is no part."""
    needs: tuple[str, ...] = ()
    """The names of the mechanisms that it needs."""
    counter: str = ""
    """A counter of `Experts.stats` that rises only while the mechanism is used; "" if there is none."""
    usual_everywhere: bool = False
    """True if also a device that computes on the CPU's cores uses it by default. Others use all of them."""

    @property
    def remedy(self) -> str:
        """The setting that switches it off, in words."""
        return f"add no-{self.part} to {env.FORM.name}" if self.part else f"give {self.option}"

    @property
    def refused(self) -> bool:
        """True if the user has switched it off."""
        return env.FORM.get(self.part) is False or (self is LOOKAHEAD and env.FORM.get("safe") is True)

    @property
    def chosen(self) -> bool:
        """True if the user has switched it on."""
        return env.FORM.get(self.part) is True


MASKS = Mechanism("device masks", "masks", usual_everywhere=True)
AHEAD = Mechanism("launching ahead", "ahead", needs=(MASKS.name,), counter="ahead_ns")
IN_PLACE = Mechanism("hand-over in place", "in-place")
PINNED = Mechanism("pinned experts", "pinned", usual_everywhere=True)
STREAMED = Mechanism("streamed prompts", option="--stream-batch 0", counter="blocks_streamed")
LOOKAHEAD = Mechanism("looking ahead", option="--lookahead 0", counter="foreseen")
MECHANISMS = (MASKS, AHEAD, IN_PLACE, PINNED, STREAMED, LOOKAHEAD)
"""All mechanisms. Each stands after those that it needs."""
BY_NAME = {mechanism.name: mechanism for mechanism in MECHANISMS}


def with_needs(mechanism: Mechanism) -> frozenset[str]:
    """Return the names of a mechanism and of those that it needs."""
    return frozenset((mechanism.name, *mechanism.needs))


def without_orphans(names: Iterable[str]) -> frozenset[str]:
    """Return the names, except those of mechanisms that need one that is not among them."""
    kept = frozenset(names)
    return frozenset(m.name for m in MECHANISMS if m.name in kept and kept.issuperset(m.needs))


def settings_of(names: Iterable[str]) -> dict[str, str]:
    """Return the variables of a process in which these mechanisms are on and all others are off."""
    on = frozenset(names)
    return {env.FORM.name: ",".join(["safe", *(m.part for m in MECHANISMS if m.part and m.name in on)])}


def there_on(mechanism: Mechanism, device: DeviceInfo) -> bool:
    """Return True if a device can run a mechanism: not every device's kernels read ids masks."""
    return device.reads_masks or MASKS.name not in with_needs(mechanism)


def used_on(mechanism: Mechanism, device: DeviceInfo) -> bool:
    """Return True if a run with the present settings uses a mechanism that works on a device."""
    if mechanism.refused or any(other.refused for other in MECHANISMS if other.name in mechanism.needs):
        return False
    return mechanism.usual_everywhere or mechanism.chosen or not device.shares_host_cores


def why_unused(mechanism: Mechanism) -> str:
    """Return the reason why a run does not use a mechanism."""
    for other in MECHANISMS:
        if other.name in with_needs(mechanism) and other.refused:
            return f"not used: {env.FORM.name} switches {other.part or other.name} off"
    choice = f"{env.FORM.name}={mechanism.part}" if mechanism.part else mechanism.option.split()[0]
    return f"not used on the simulated device without {choice}"


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
            if result.verdict == "works" and not BY_NAME[result.name].refused:
                working.add(result.name)
        if together := without_orphans(working):
            yield self._together(test.together(together))

    def heeded(self, check: Callable[[], Iterator[Finding]], name: str = "demo") -> Iterator[Finding]:
        """Run the check that loads a model, with the failed mechanisms switched off."""
        if self._unusable:
            yield Finding(name, "off", "not run", self._unusable)
            return
        before = os.environ.get(env.FORM.name, "")
        os.environ[env.FORM.name] = ",".join([before, *self._off])
        try:
            yield from check()
        finally:
            os.environ[env.FORM.name] = before

    def _plain(self, result: Result, device: DeviceInfo) -> Finding:
        if not result.failed:
            return Finding(result.name, "ok", result.found)
        self._unusable = f"the plain split fails on {device.name}"
        return Finding(result.name, "fault", result.found, "give --device cpu: this device cannot be used")

    def _one(self, result: Result, device: DeviceInfo) -> Finding:
        mechanism = BY_NAME[result.name]
        if result.failed and mechanism.part:
            self._off.append(f"no-{mechanism.part}")
        elif result.failed:
            self._unusable = f"{result.name} fail here: {mechanism.remedy}"
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
