"""Errors of environment variables name the accepted values."""

from __future__ import annotations

import pytest

from spac import env
from spac.errors import InputError


def test_the_simulated_devices_settings(monkeypatch):
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "memory_mb=64, upload_gb_s=0.5, fault=no-signal")
    assert env.SIMULATED_DEVICE.get() == [{"memory_mb": 64, "upload_gb_s": 0.5, "fault": "no-signal"}]
    monkeypatch.delenv("SPAC_SIMULATED_DEVICE")
    assert env.SIMULATED_DEVICE.get() is None


@pytest.mark.parametrize(
    "text", ["memory=64", "memory_mb", "memory_mb=lots", "latency_us=-1", "delay_us=inf"]
)
def test_settings_that_cannot_be_are_refused(monkeypatch, text):
    monkeypatch.setenv(env.SIMULATED_DEVICE.name, text)
    with pytest.raises(InputError, match="upload_gb_s"):
        env.SIMULATED_DEVICE.get()


def test_a_number_or_nothing(monkeypatch):
    for text, value in {"": None, "0": 0, "2.5": 2.5}.items():
        monkeypatch.setenv(env.GATE_TIMEOUT.name, text)
        assert env.GATE_TIMEOUT.get() == value
    for text in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv(env.GATE_TIMEOUT.name, text)
        with pytest.raises(InputError, match=text):
            env.GATE_TIMEOUT.get()


@pytest.mark.parametrize(("variable", "text", "value"), [
    (env.PIN_LIMIT, "64G", 64 << 30), (env.PIN_LIMIT, "64", 64), (env.PIN_LIMIT, "lots", None),
    (env.STATE, "off", "off"), (env.STATE, "on", None), (env.CPU_VARIANT, "sse", None),
    (env.API_KEY, " k", " k"),
])  # fmt: skip
def test_sizes_and_words(monkeypatch, variable, text, value):
    monkeypatch.setenv(variable.name, text)
    if value is not None:
        assert variable.get() == value
        return
    with pytest.raises(InputError, match=f"^{variable.name}: '{text}' is not "):
        variable.get()


def test_the_form(monkeypatch):
    """Each word is a part, or switches one off. The last word about a part holds, and safe is about all."""
    parts = "ahead", "masks", "pinned"
    for text, values in {
        "": (None, None, None),
        "no-ahead, masks": (False, True, None),
        "ahead,no-ahead": (False, None, None),
        "pinned,safe,masks": (False, True, False),
    }.items():
        monkeypatch.setenv("SPAC_FORM", text)
        assert tuple(map(env.FORM.get, parts)) == values
    monkeypatch.setenv("SPAC_FORM", "safe,masks")
    assert env.FORM.get("safe") is True
    for text in ("fast", "no-safe", "ahead=1", "no-"):
        monkeypatch.setenv("SPAC_FORM", text)
        with pytest.raises(InputError, match=f"SPAC_FORM: '{text}' is not valid: write safe, or parts"):
            env.FORM.get("ahead")
