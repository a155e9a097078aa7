"""Several devices on the command line, with llama.cpp's options, and what is wrong in one line."""

from __future__ import annotations

GREEDY = ("--temp", 0, "-n", 8, "-p", "def f(", "-t", 1)
TWO = {"SPAC_SIMULATED_DEVICE": "memory_mb=256;memory_mb=64,upload_gb_s=0.5"}
ON_TWO = ("--device", "simulated,simulated1")


def test_two_devices_give_the_text_of_one(spac_run, target):
    one = spac_run("-m", target, *GREEDY, "--device", "simulated")
    arguments = ("-sm", "layer", "--slots", "50%", "--stats", "json")
    for env, device in ((TWO, ON_TWO), (TWO | {"SPAC_DEVICE": "simulated,simulated1"}, ())):
        two = spac_run("-m", target, *GREEDY, *device, "-ts", "1/1", *arguments, env=env)
        assert [each["name"] for each in two.stats["devices"]] == ["simulated", "simulated1"]
        assert all(each["layers"] > 0 and each["slots"] > 0 for each in two.stats["devices"])
        assert two.out == one.out


def test_a_device_without_room_for_its_layers(spac_run, target):
    env = {"SPAC_SIMULATED_DEVICE": "memory_mb=256;memory_mb=1"}
    said = "of the 1.0 MiB of simulated1 are free; --tensor-split can give a device fewer layers"
    assert said in spac_run("-m", target, *GREEDY, "-q", *ON_TWO, "-ts", "1,1", env=env).refusal
