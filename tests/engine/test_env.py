"""Environment variables say what they accept."""

from __future__ import annotations

import pytest

from spac import env
from spac.errors import InputError


def test_the_stand_ins_settings(monkeypatch):
    monkeypatch.setenv(env.STAND_IN.name, "memory_mb=64, upload_gb_s=0.5")
    assert env.STAND_IN.get() == {"memory_mb": 64, "upload_gb_s": 0.5}
    monkeypatch.delenv(env.STAND_IN.name)
    assert env.STAND_IN.get() == {}


@pytest.mark.parametrize(
    "text", ["memory=64", "memory_mb", "memory_mb=lots", "latency_us=-1", "delay_us=inf"]
)
def test_settings_that_cannot_be_are_refused(monkeypatch, text):
    monkeypatch.setenv(env.STAND_IN.name, text)
    with pytest.raises(InputError, match="upload_gb_s"):
        env.STAND_IN.get()


def test_a_number_or_nothing(monkeypatch):
    for text, value in {"": None, "0": 0, "2.5": 2.5}.items():
        monkeypatch.setenv(env.GATE_TIMEOUT.name, text)
        assert env.GATE_TIMEOUT.get() == value
    for text in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv(env.GATE_TIMEOUT.name, text)
        with pytest.raises(InputError, match=text):
            env.GATE_TIMEOUT.get()
