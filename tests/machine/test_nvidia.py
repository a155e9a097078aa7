"""Tests of what NVIDIA's driver and cards can run, by what the driver's library answers."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spac import _core, env
from spac.doctor import devices as checks
from spac.errors import InputError
from spac.machine import device_memory, nvidia
from spac.model import devices

WHEEL = "86-real,89-real,90-real,120-real"


class Driver:
    """A library of a driver with one card."""

    def __init__(self, cuda: int = 13000, card: tuple[int, int] = (8, 6), fails: str = "") -> None:
        self._cuda, self._card, self._fails = cuda, card, fails

    def _answer(self, name: str) -> int:
        return 100 if name == self._fails else 0

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self._answer("init")

    def cuDriverGetVersion(self, value: Any) -> int:  # noqa: N802
        value._obj.value = self._cuda
        return self._answer("version")

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802
        handle._obj.value = index
        return 101 if index > 0 else self._answer("get")

    def cuDeviceGetAttribute(self, value: Any, number: int, _handle: Any) -> int:  # noqa: N802
        value._obj.value = self._card[number - 75]
        return self._answer("attribute")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver | None], None]:
    def use_driver(driver: Driver | None) -> None:
        def load(_name: str) -> Driver:
            if driver is None:
                raise OSError("no such file")
            return driver

        monkeypatch.setattr(
            nvidia, "ctypes", SimpleNamespace(CDLL=load, c_int=ctypes.c_int, byref=ctypes.byref)
        )

    return use_driver


def test_the_driver_is_asked(use: Callable[[Driver | None], None]) -> None:
    use(Driver(12040, (8, 9)))
    assert nvidia.driver_cuda() == (12, 4)
    assert nvidia.capability("CUDA0") == 89
    assert nvidia.capability("CUDA1") is None
    assert nvidia.capability("Vulkan0") is None
    assert nvidia.capability("simulated") is None


def test_a_driver_that_knows_no_capability(use: Callable[[Driver | None], None]) -> None:
    use(Driver(card=(0, 0)))
    assert nvidia.capability("CUDA0") is None


@pytest.mark.parametrize("fails", ["init", "version", "get", "attribute", "library"])
def test_what_the_driver_does_not_say_is_unknown(use: Callable[[Driver | None], None], fails: str) -> None:
    use(None if fails == "library" else Driver(fails=fails))
    assert nvidia.capability("CUDA0") == (86 if fails == "version" else None)
    assert (nvidia.driver_cuda() is None) == (fails in ("version", "library"))


@pytest.mark.parametrize(
    ("card", "architectures", "kernels"),
    [
        (86, WHEEL, "made"),
        (87, WHEEL, "made"),  # a binary runs on later cards of its major version
        (80, WHEEL, "none"),
        (75, WHEEL, "none"),
        (100, WHEEL, "none"),
        (121, WHEEL, "made"),
        (61, "75-virtual,80-virtual", "none"),
        (75, "75-virtual,80-virtual", "compiled"),
        (120, "75-virtual,80-virtual", "compiled"),
        (86, "80", "made"),
        (90, "80", "compiled"),
        (90, "90a-real", "made"),
        (91, "90a-real", "none"),
        (100, "90a", "none"),
        (103, "100f-real", "made"),
        (None, WHEEL, "made"),
        (86, "", "made"),
        (86, "native", "made"),
    ],
)
def test_what_a_build_has_for_a_card(card: int | None, architectures: str, kernels: str) -> None:
    assert nvidia.kernels_for(card, architectures) == kernels


def test_a_driver_that_is_too_old_says_what_to_do(use: Callable[[Driver | None], None]) -> None:
    use(Driver(12040))
    assert nvidia.too_old("13.0") == (
        "the NVIDIA driver supports CUDA 12.4, and this build needs CUDA 13: update it to 580 or newer"
    )
    assert nvidia.too_old("12.8") == nvidia.too_old("") == ""
    use(None)
    assert nvidia.too_old("13.0") == ""


def card(name: str = "CUDA0", **facts: bool) -> Any:
    return SimpleNamespace(name=name, shares_host_cores=False, is_integrated=False, **facts)


def test_a_card_without_kernels_is_refused_with_a_line(
    use: Callable[[Driver | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first kernel would end the process."""
    monkeypatch.delenv(env.DEVICE.name, raising=False)
    monkeypatch.setattr(_core, "devices", lambda: [card()])
    monkeypatch.setattr(_core, "cuda_architectures", WHEEL)
    use(Driver(card=(7, 5)))
    assert devices.choose_devices("auto") == ()
    line = (
        f"CUDA0 has compute capability 7.5, and this build has kernels for {WHEEL} alone: build with "
        "-DSPAC_CUDA_ARCHITECTURES=75"
    )
    assert devices.without_kernels([card()]) == [line]
    with pytest.raises(InputError, match=r"CUDA0 has compute capability 7\.5"):
        devices.choose_devices("cuda0")
    use(Driver(card=(8, 9)))
    assert [each.name for each in devices.choose_devices("auto")] == ["CUDA0"]


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what set_switches sets."""
    found: dict[str, Any] = {}
    for name in (
        "launch_ahead",
        "gate_timeout",
        "hand_over_in_place",
        "trust_device_masks",
        "upload_threads",
    ):
        monkeypatch.setattr(_core, f"set_{name}", lambda value, name=name: found.__setitem__(name, value))
    return found


def test_kernels_that_are_compiled_late_get_time(
    use: Callable[[Driver | None], None], monkeypatch: pytest.MonkeyPatch, switched: dict[str, Any]
) -> None:
    monkeypatch.setattr(_core, "cuda_architectures", "75-virtual")
    use(Driver(card=(8, 9)))
    (note,) = devices.set_switches([card()])
    assert "CUDA0: the driver compiles this build's kernels at their first use" in note
    assert switched["gate_timeout"] == devices.COMPILING_S
    monkeypatch.setenv(env.GATE_TIMEOUT.name, "7")
    devices.set_switches([card()])
    assert switched["gate_timeout"] == 7
    monkeypatch.setattr(_core, "cuda_architectures", "89-real")
    monkeypatch.delenv(env.GATE_TIMEOUT.name)
    assert devices.set_switches([card()]) == []
    assert switched["gate_timeout"] is None


@pytest.mark.parametrize(
    ("system", "form", "ahead", "n_notes"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", "", False, 1),
        ("6.6.87.2-microsoft-standard-WSL2", "ahead", True, 0),
        ("6.1.0-amd64", "", None, 0),
    ],
)
def test_wsl2_queues_nothing_ahead(
    monkeypatch: pytest.MonkeyPatch, switched: dict[str, Any],
    system: str, form: str, ahead: bool | None, n_notes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(platform, "release", lambda: system)
    monkeypatch.setenv(env.FORM.name, form)
    assert len(devices.set_switches([card()])) == n_notes
    assert switched["launch_ahead"] is ahead
    assert devices.set_switches([card("Vulkan0")]) == []


def test_the_doctor_says_why_there_is_no_gpu(
    use: Callable[[Driver | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "cuda_version", "13.0")
    use(Driver(12040))
    assert "update it to 580 or newer" in checks._why_no_gpu(True, checks._driver())
    use(Driver(13000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert checks._why_no_gpu(True, checks._driver()) == (
        "the driver offers no device: CUDA_VISIBLE_DEVICES is ''"
    )


@pytest.fixture
def fresh() -> Iterator[None]:
    nvidia.shows_desktop.cache_clear()
    yield
    nvidia.shows_desktop.cache_clear()


@pytest.mark.parametrize("active", [True, False])
def test_a_card_that_shows_a_desktop_keeps_room_for_it(
    fresh: None, monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    monkeypatch.setattr(nvidia, "_display_active", lambda _pci: active)
    gib = 1 << 30

    def spare(total: int, limit: int = 0) -> int:
        size = min(total, limit) if limit else total
        memory = SimpleNamespace(size=size, total=total, limit=limit)
        return device_memory.spare(card(pci="0000:01:00.0", memory=memory, shares_host_memory=False))

    usual = device_memory.margin(8 * gib, shares_host_memory=False)
    assert spare(8 * gib) == usual + active * device_memory.DESKTOP
    assert spare(16 * gib, limit=8 * gib) == usual
    assert not nvidia.shows_desktop("simulated", "")


@pytest.mark.parametrize(("status", "shows"), [("connected", True), ("disconnected", False), (None, False)])
def test_without_the_management_library_a_monitor_tells(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str | None, shows: bool
) -> None:
    monkeypatch.setattr(nvidia, "_display_active", lambda _pci: None)
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path)
    if status is not None:
        connector = tmp_path / "0000:0a:00.0" / "drm" / "card0" / "card0-DP-1"
        connector.mkdir(parents=True)
        (connector / "status").write_text(status + "\n")
    assert nvidia.shows_desktop("CUDA0", "0000:0A:00.0") is shows


def test_windows_counts_as_a_desktop(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    assert nvidia.shows_desktop("CUDA0", "")
    assert not nvidia.shows_desktop("Vulkan0", "")


def test_the_management_library_answers_for_a_card(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        asked = b""

        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

        def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, _handle: Any) -> int:  # noqa: N802
            self.asked = pci
            return 0 if pci == b"0000:01:00.0" else 2

        def nvmlDeviceGetDisplayActive(self, _handle: Any, active: Any) -> int:  # noqa: N802
            active._obj.value = 1
            return 0

    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    assert nvidia._display_active("0000:01:00.0") is True
    assert library.asked == b"0000:01:00.0"
    assert nvidia._display_active("0000:02:00.0") is None
