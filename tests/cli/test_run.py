"""A good run prints the right output to the right stream, and ends with the right exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spac import _core
from spac.run import main
from tests.cli.conftest import ONE_THREAD, environment
from tests.threads import n_threads

GREEDY = ("--temp", 0, "-n", 12, "--device", "simulated")


def statistics(outcome):
    return json.loads(outcome.err.splitlines()[-1])


def test_text_goes_to_stdout_and_figures_to_stderr(spac_run, target):
    outcome = spac_run("-m", target, "-p", "def f(", *GREEDY)
    assert outcome.code == 0
    assert outcome.out.endswith("\n")
    assert len(outcome.out) > 1
    figures = [line.split("  ")[0] for line in outcome.err.splitlines() if not line.startswith("spac: ")]
    assert figures == ["speed", "computed", "to change"]
    assert "speed" not in outcome.out


def test_all_figures(spac_run, target):
    outcome = spac_run("-m", target, "-p", "def f(", *GREEDY, "--stats", "full")
    for subject in ("speed", "prompt", "experts", "hit rate", "share", "moved", "host waits", "simulated"):
        assert subject in outcome.err


def test_the_figures_as_json(spac_run, target, draft, tmp_path):
    path = tmp_path / "stats.json"
    outcome = spac_run(
        "-m",
        target,
        "-md",
        draft,
        "-p",
        "def f(",
        *GREEDY,
        "--draft-length",
        8,
        "--slots",
        "40%",
        "--stats",
        "json",
        "--stats-file",
        path,
    )
    assert outcome.code == 0
    stats = statistics(outcome)
    assert stats == json.loads(path.read_text())
    assert stats["schema"] == 1
    assert stats["generated_tokens"] == 12
    assert stats["reason"] == "length"
    assert stats["n_experts"] == 15
    assert stats["slots"] == 6
    assert stats["draft_types"] == ["draft-simple"]
    assert 0 <= stats["acceptance"] <= 1
    assert stats["activations"] > 0
    assert stats["uploads"] > 0
    assert stats["cpu_share"] + stats["gpu_share"] == pytest.approx(1)
    assert stats["tokens_per_second"] > 0
    assert stats["time_to_first_token_s"] > 0


def test_no_figures(spac_run, target):
    outcome = spac_run("-m", target, "-p", "def f(", *GREEDY, "--stats", "none", "--quiet")
    assert outcome.code == 0
    assert outcome.err == ""


def test_a_file_for_the_figures_that_cannot_be_written(spac_run, target, tmp_path):
    outcome = spac_run("-m", target, "-p", "x", *GREEDY, "-q", "--stats-file", tmp_path / "no" / "stats.json")
    assert outcome.code == 2
    assert "stats.json" in outcome.error


def test_the_same_prompt_in_every_way(spac_run, target, tmp_path):
    text = "class Point:\n    def "
    (tmp_path / "prompt.txt").write_text(text)
    ways = [
        spac_run("-m", target, "-p", text, *GREEDY),
        spac_run("-m", target, "-f", tmp_path / "prompt.txt", *GREEDY),
        spac_run("-m", target, *GREEDY, stdin=text),
        spac_run("-m", target, "-f", "-", *GREEDY, stdin=text),
    ]
    assert [way.code for way in ways] == [0] * 4
    assert len({way.out for way in ways}) == 1
    assert spac_run("-m", target, "-p", text, *GREEDY, "--echo").out == text + ways[0].out


def test_a_seed_repeats_the_text(spac_run, target):
    sampled = ("--temp", 1.5, "-n", 12, "-q", "--stats", "json")
    first, other = (spac_run("-m", target, "-p", "def f(", *sampled) for _ in range(2))
    again = spac_run("-m", target, "-p", "def f(", *sampled, "--seed", statistics(first)["seed"])
    assert again.out == first.out
    assert statistics(other)["seed"] != statistics(first)["seed"]


def test_a_stop_string_ends_the_text(spac_run, target):
    whole = spac_run("-m", target, "-p", "def f(", *GREEDY, "-q").out
    stop = whole[4:6]
    cut = spac_run("-m", target, "-p", "def f(", *GREEDY, "-r", stop, "--stats", "json", "-q")
    assert cut.out == whole.split(stop)[0] + "\n"
    assert statistics(cut)["reason"] == "stop"


def test_a_target_without_experts_runs_as_plain_llama_cpp(spac_run, tiny_model):
    target = tiny_model("qwen3")
    outcome = spac_run("-m", target, "-p", "def f(", *GREEDY, "--stats", "json")
    assert outcome.code == 0
    assert statistics(outcome)["hit_rate"] is None
    assert [line for line in outcome.err.splitlines() if "has no experts: runs as plain llama.cpp" in line]


def test_a_draft_that_is_larger_than_the_target(spac_run, target, draft):
    assert "is larger than the target" in spac_run("-m", draft, "-md", target, "-p", "x", *GREEDY).err
    assert "is larger" not in spac_run("-m", target, "-md", draft, "-p", "x", *GREEDY).err


def test_the_cpu_as_device_is_plain_llama_cpp(spac_run, target):
    plain = spac_run("-m", target, "-p", "def f(", "--temp", 0, "-n", 12, "--device", "cpu")
    assert plain.code == 0
    assert "plain llama.cpp" in plain.err


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
    assert "no GPU" in outcome.err
    assert "simulated" in outcome.err


@pytest.mark.parametrize("name", ["stand-in", "Stand-In", "SIMULATED"])
def test_the_simulated_devices_names(spac_run, target, name):
    options = ("-n", 2, "--stats", "json", "--slots", "40%")
    outcome = spac_run("-m", target, "-p", "def f(", *options, "--device", name)
    assert outcome.code == 0
    assert (statistics(outcome)["device"], statistics(outcome)["device_is_simulated"]) == ("simulated", True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed(target, closed, tmp_path):
    line = f'"$@" {closed}'
    command = [sys.executable, "-m", "spac.run", *ONE_THREAD, "-m", target, "-p", "x", *GREEDY]
    done = subprocess.run(
        ["sh", "-c", line, "sh", *map(str, command)],
        capture_output=True,
        timeout=60,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert b"rror" not in done.stderr


def test_nothing_is_written_where_nothing_can_be(spac_run, target):
    nowhere = "/proc/nowhere"
    outcome = spac_run(
        "-m", target, "-p", "x", *GREEDY, env={"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": nowhere}
    )
    assert outcome.code == 0


@pytest.mark.parametrize("scheduler", ["static", "lru", "none"])
def test_every_scheduler_gives_the_same_text(spac_run, target, draft, scheduler):
    same = ["-m", target, "-md", draft, "-p", "def f(", *GREEDY, "--deterministic"]
    outcome = spac_run(*same, "--scheduler", scheduler)
    plain = spac_run(*same, "--slots", 0)
    assert outcome.code == plain.code == 0
    assert outcome.out == plain.out


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache"])
def test_drafts_without_a_draft_model(spac_run, target, kind):
    outcome = spac_run(
        "-m", target, "-p", "abcabcabcabcabcabcabcabcabcabc" * 3, *GREEDY, "--draft-type", kind,
        "--stats", "full",
    )  # fmt: skip
    assert outcome.code == 0
    assert kind in outcome.err


def test_a_full_context_ends_with_length(spac_run, target):
    outcome = spac_run(
        "-m", target, "-p", "def f(", "--temp", 0, "-c", 256, "-n", -1, "--ignore-eos", "--stats", "json"
    )
    assert outcome.code == 0
    stats = statistics(outcome)
    assert stats["reason"] == "length"
    assert stats["prompt_tokens"] + stats["generated_tokens"] >= stats["context"]


def test_slots_that_do_not_fit(spac_run, tiny_model):
    """The model has 48 experts of 0.4 MB. The device holds some of them beside the rest of the model."""
    target = tiny_model("qwen3moe", n_expert=16, n_ff_exp=512)
    memory = {"SPAC_SIMULATED_DEVICE": "memory_mb=12"}
    explicit = spac_run("-m", target, "-p", "x", *GREEDY, "-c", 256, "--slots", "100%", env=memory)
    assert explicit.code == 2
    assert "fit" in explicit.error
    assert "--slots auto" in explicit.error
    said = int(re.search(r": (\d+) would", explicit.error)[1])
    assert 0 < said < 48
    fits = spac_run(
        "-m", target, "-p", "x", *GREEDY, "-c", 256, "--slots", said, "--stats", "json", env=memory
    )
    assert fits.code == 0
    assert statistics(fits)["slots"] == said
    memory = {"SPAC_SIMULATED_DEVICE": "memory_mb=6"}
    auto = spac_run("-m", target, "-p", "x", *GREEDY, "-c", 256, "--stats", "json", env=memory)
    assert auto.code == 0
    assert "slots: " in auto.err
    assert "fit into the memory" in auto.err
    assert statistics(auto)["slots"] < 12


def start(*arguments, program=("spac.run",), **env):
    return subprocess.Popen(
        [sys.executable, "-m", *program, *ONE_THREAD, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**env),
    )


ENDLESS = ("-p", "def f(", "-n", -1, "-c", 4096, "--ignore-eos", "--device", "simulated", "--temp", 0)


def test_an_interrupt_ends_with_the_table(target):
    process = start("-m", target, *ENDLESS)
    process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"speed" in err
    assert b"cancelled" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("program", [("spac", "run"), ("spac.run",), ("spac", "serve", "--port", "0")])
@pytest.mark.parametrize("after_s", [0, 0.2, 0.4])
def test_an_interrupt_while_it_starts(target, after_s, program):
    options = ["-m", target, *(ENDLESS if "--port" not in program else ())]
    process = start(*options, program=program)
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
    time.sleep(2)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    started = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - started < 3


def test_no_thread_is_left_behind(target, capfd):
    counts = []
    for _ in range(2):  # the first run may start threads that the process keeps
        assert main([*ONE_THREAD, "-m", str(target), "-p", "x", *map(str, GREEDY)]) == 0
        counts.append(n_threads())
    assert counts[1] <= counts[0]
    assert "speed" in capfd.readouterr().err
    assert not any(thread.name.startswith("spac") for thread in threading.enumerate())


def test_nobody_reads_the_text(target):
    process = start("-m", target, *ENDLESS, "-q")
    process.stdout.read(8)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert b"speed" in err
    assert b"Traceback" not in err
    assert b"Exception" not in err


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
