"""A good run prints the right output to the right stream, and ends with the right exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spac import _core
from tests.cli.conftest import ONE_THREAD, environment

GREEDY = ("--temp", 0, "-n", 12, "--device", "simulated")


RUN = ("-p", "def f(", *GREEDY)
JSON = ("--stats", "json")


def test_text_goes_to_stdout_and_figures_to_stderr(spac_run, target):
    outcome = spac_run("-m", target, *RUN)
    assert outcome.code == 0
    assert outcome.out.endswith("\n")
    assert len(outcome.out) > 1
    figures = [line.split("  ")[0] for line in outcome.err.splitlines() if not line.startswith("spac: ")]
    assert figures == ["speed", "computed", "to change"]
    assert "speed" not in outcome.out


def test_all_figures_and_none(spac_run, target):
    outcome = spac_run("-m", target, *RUN, "--stats", "full")
    for subject in ("speed", "prompt", "hit rate", "step time", "copied", "slots", "simulated", "to change"):
        assert subject in outcome.err
    outcome = spac_run("-m", target, *RUN, "--stats", "none", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")


def test_the_figures_as_json(spac_run, target, draft, tmp_path):
    pair = ("-m", target, "-md", draft, *RUN)
    outcome = spac_run(*pair, "--draft-length", 8, "--slots", "40%", *JSON, "--stats-file", "stats.json")
    stats = outcome.stats
    assert stats == json.loads((tmp_path / "stats.json").read_text())
    wanted = {"schema": 2, "generated_tokens": 12, "reason": "length", "n_experts": 15, "slots": 6}
    assert wanted | {"draft_types": ["draft-simple"]} == {
        name: stats[name] for name in (*wanted, "draft_types")
    }
    assert 0 <= stats["acceptance"] <= 1
    assert stats["cpu_share"] + stats["gpu_share"] == pytest.approx(1)
    for name in ("activations", "uploads", "tokens_per_second", "time_to_first_token_s"):
        assert stats[name] > 0


def test_the_same_prompt_in_every_way(spac_run, target, tmp_path):
    text = "class Point:\n    def "
    (tmp_path / "prompt.txt").write_text(text)
    given = {("-p", text): None, ("-f", "prompt.txt"): None, (): text, ("-f", "-"): text}
    ways = [spac_run("-m", target, *GREEDY, *words, stdin=stdin) for words, stdin in given.items()]
    assert [way.code for way in ways] == [0] * 4
    assert len({way.out for way in ways}) == 1
    assert spac_run("-m", target, "-p", text, *GREEDY, "--echo").out == text + ways[0].out


def test_a_seed_repeats_the_text(spac_run, target):
    sampled = ("-m", target, "-p", "def f(", "--temp", 1.5, "-n", 12, "-q", *JSON)
    first, other = (spac_run(*sampled) for _ in range(2))
    assert spac_run(*sampled, "--seed", first.stats["seed"]).out == first.out
    assert other.stats["seed"] != first.stats["seed"]


def test_a_stop_string_ends_the_text(spac_run, target):
    whole = spac_run("-m", target, *RUN, "-q").out
    stop = whole[4:6]
    cut = spac_run("-m", target, *RUN, "-r", stop, *JSON, "-q")
    assert (cut.out, cut.stats["reason"]) == (whole.split(stop)[0] + "\n", "stop")


def test_what_is_no_split_runs_as_plain_llama_cpp(spac_run, target, tiny_model):
    outcome = spac_run("-m", tiny_model("qwen3"), *RUN, *JSON)
    assert outcome.stats["hit_rate"] is None
    assert [line for line in outcome.err.splitlines() if "has no experts: runs as plain llama.cpp" in line]
    plain = spac_run("-m", target, *RUN, "--device", "cpu")
    assert (plain.code, "plain llama.cpp" in plain.err) == (0, True)


def test_a_draft_that_is_larger_than_the_target(spac_run, target, draft):
    assert "is larger than the target" in spac_run("-m", draft, "-md", target, "-p", "x", *GREEDY).err
    assert "is larger" not in spac_run("-m", target, "-md", draft, "-p", "x", *GREEDY).err


def test_without_kernels_of_spac_llama_cpp_repacks_what_it_can(spac_run, tiny_model):
    target = tiny_model("qwen3moe", n_expert=8, types={"*_exps": "Q4_0"})
    options = ("-m", target, "-p", "def f(", "-n", 2, "--device", "cpu", "--verbose")
    outcomes = [spac_run(*options, env={"SPAC_FORM": form}) for form in ("no-cpu-kernels", "")]
    assert [outcome.code for outcome in outcomes] == [0, 0]
    repacked = ["CPU_REPACK" in outcome.err for outcome in outcomes]
    if "AVX2 = 1" in _core.system_info():
        assert repacked == [True, False]


def test_without_a_gpu_it_says_so(spac_run, target):
    outcome = spac_run("-m", target, "-p", "def f(", "--temp", 0, "-n", 2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert outcome.code == 0
    assert all(word in outcome.err for word in ("no GPU", "simulated"))


@pytest.mark.parametrize("name", ["stand-in", "Stand-In", "SIMULATED"])
def test_the_simulated_devices_names(spac_run, target, name):
    stats = spac_run("-m", target, "-p", "def f(", "-n", 2, *JSON, "--slots", "40%", "--device", name).stats
    assert (stats["device"], stats["device_is_simulated"]) == ("simulated", True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed(target, closed, tmp_path):
    command = [sys.executable, "-m", "spac.run", *ONE_THREAD, "-m", target, "-p", "x", *GREEDY]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *map(str, command)],
        capture_output=True, timeout=60, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, b"rror" in done.stderr) == (0, False)


def test_nothing_is_written_where_nothing_can_be(spac_run, target):
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "TMPDIR"), "/proc/nowhere")
    assert spac_run("-m", target, "-p", "x", *GREEDY, env=nowhere).code == 0


def test_a_full_context_ends_with_length(spac_run, target):
    stats = spac_run("-m", target, *RUN, "-c", 256, "-n", -1, "--ignore-eos", *JSON).stats
    assert stats["reason"] == "length"
    assert stats["prompt_tokens"] + stats["generated_tokens"] >= stats["context"]


def test_slots_that_do_not_fit(spac_run, tiny_model):
    """The model has 48 experts of 0.4 MB. The device holds some of them beside the rest of the model."""
    words = ("-m", tiny_model("qwen3moe", n_expert=16, n_ff_exp=512), "-p", "x", *GREEDY, "-c", 256)

    def of_memory(mb, *more):
        return spac_run(*words, *more, env={"SPAC_SIMULATED_DEVICE": f"memory_mb={mb}"})

    line = of_memory(12, "--slots", "100%").refusal
    assert "fit" in line
    assert "--slots auto" in line
    said = int(re.search(r": (\d+) would", line)[1])
    assert 0 < said < 48
    assert of_memory(12, "--slots", said, *JSON).stats["slots"] == said
    auto = of_memory(6, *JSON)
    assert auto.stats["slots"] < 12
    assert re.search("slots: .*fit into the memory", auto.err)


def start(*arguments, program=("spac.run",), **env):
    return subprocess.Popen(
        [sys.executable, "-m", *program, *ONE_THREAD, *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**env),
    )  # fmt: skip


ENDLESS = ("-p", "def f(", "-n", -1, "-c", 4096, "--ignore-eos", "--device", "simulated", "--temp", 0)


def test_an_interrupt_ends_with_the_table(target):
    process = start("-m", target, *ENDLESS)
    process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert [word in err for word in (b"speed", b"cancelled", b"Traceback")] == [True, True, False]


@pytest.mark.parametrize("program", [("spac", "run"), ("spac.run",), ("spac", "serve", "--port", "0")])
@pytest.mark.parametrize("after_s", [0, 0.2, 0.4])
def test_an_interrupt_while_it_starts(target, after_s, program):
    process = start("-m", target, *(ENDLESS if "--port" not in program else ()), program=program)
    maps = Path(f"/proc/{process.pid}/maps")
    while "multiarray" not in maps.read_text():  # until then, Python itself starts, and not yet the program
        time.sleep(0.005)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    serves = b"serving" in err  # Then a stop is a normal end.
    assert (process.returncode, b"Traceback" in err) == (0 if serves else 130, False)


def test_a_second_interrupt_ends_a_graph_that_takes_long(target):
    process = start("-m", target, *ENDLESS, SPAC_SIMULATED_DEVICE="latency_us=5000000")
    time.sleep(1.2)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    started = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - started < 3


def test_nobody_reads_the_text(target):
    process = start("-m", target, *ENDLESS, "-q")
    process.stdout.read(8)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert [word in err for word in (b"speed", b"Traceback", b"Exception")] == [True, False, False]


def test_a_pipe_that_nobody_writes_to_does_not_hang_the_demo(tmp_path):
    """Programs that start others often leave stdin open."""
    pytest.importorskip("spac.demo")
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spac.run", *ONE_THREAD, "-n", "4"],
            stdin=reader, capture_output=True, timeout=60, env=environment(), cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0
    finally:
        os.close(reader)
        os.close(writer)
