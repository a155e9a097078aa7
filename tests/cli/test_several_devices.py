"""Several devices on the command line, with llama.cpp's options, and what is wrong in one line."""

from __future__ import annotations

import json

import pytest

GREEDY = ("--temp", 0, "-n", 8, "-p", "def f(", "-t", 1)
TWO = {"SPAC_SIMULATED_DEVICE": "memory_mb=256;memory_mb=64,upload_gb_s=0.5"}
ON_TWO = ("--device", "simulated,simulated1")


def test_two_devices_give_the_text_of_one(spac_run, target):
    one = spac_run("-m", target, *GREEDY, "--device", "simulated")
    arguments = (*ON_TWO, "-ts", "1/1", "-sm", "layer", "--slots", "50%", "--stats", "json")
    two = spac_run("-m", target, *GREEDY, *arguments, env=TWO)
    assert (two.code, two.out) == (0, one.out), two.err
    stats = json.loads(two.err.splitlines()[-1])
    assert [each["name"] for each in stats["devices"]] == ["simulated", "simulated1"]
    assert all(each["layers"] > 0 and each["slots"] > 0 for each in stats["devices"])


def test_the_environment_names_several_devices(spac_run, target):
    env = {**TWO, "SPAC_DEVICE": "simulated,simulated1"}
    outcome = spac_run("-m", target, *GREEDY, "-ts", "1,1", env=env)
    assert outcome.code == 0
    assert "simulated,simulated1" in outcome.err


BAD = {
    "unknown device 'simulated1': choose one of auto": (*ON_TWO,),
    "--main-gpu 1: there is one device (simulated): give 0": ("--device", "simulated", "--main-gpu", 1),
    "--tensor-split 1,1 has 2 parts": ("--device", "simulated", "-ts", "1,1"),
    "--split-mode/-sm: 'row' divides each matrix": ("--device", "simulated", "-sm", "row"),
}


@pytest.mark.parametrize(("line", "arguments"), BAD.items(), ids=BAD)
def test_what_is_wrong_is_said_in_one_line(spac_run, target, line, arguments):
    outcome = spac_run("-m", target, *GREEDY, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert line in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err


def test_a_device_without_room_for_its_layers(spac_run, target):
    env = {"SPAC_SIMULATED_DEVICE": "memory_mb=256;memory_mb=1"}
    outcome = spac_run("-m", target, *GREEDY, *ON_TWO, "-ts", "1,1", env=env)
    assert outcome.code == 2
    last = outcome.err.splitlines()[-1]
    assert "of the 1.0 MiB of simulated1 are free; --tensor-split can give a device fewer layers" in last
    assert "Traceback" not in outcome.err
