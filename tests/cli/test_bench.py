"""`spac bench` measures every combination as `spac run` would run it, and reports a table and JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from spac.bench import main
from spac.bench.candidates import Candidate, combinations
from spac.bench.figures import best, lines, rivals, rows, widest
from spac.bench.measure import Pairs, Sample
from spac.config import EngineConfig, Slots
from spac.run import main as run
from spac.scheduler import SchedulerChoice
from spac.stats import Meter, RunStats, Setting
from tests.cli.conftest import ONE_THREAD, environment

LRU = SchedulerChoice("lru")

SHORT = (*ONE_THREAD, "--device", "simulated", "--repeat", "1", "--max-tokens", "8")


@pytest.fixture
def bench(capfd):
    """Return `bench("--slots", 4)`. It runs in this process, and returns exit code, stdout and stderr."""

    def call(*arguments, short=SHORT):
        try:
            code = main([*short, *map(str, arguments)])
        except SystemExit as exit:  # raised by argparse
            code = exit.code
        streams = capfd.readouterr()
        return code, streams.out, streams.err

    return call


def test_the_demo_pair_in_every_combination(bench, tmp_path):
    path = tmp_path / "bench.json"
    code, out, err = bench(
        "--schedulers", "lru", "moe-spac:levels=8", "none", "--slots", "10%", 40,
        "--draft-lengths", 0, 3, "--repeat", 2, "--json", path,
    )  # fmt: skip
    assert code == 0, err
    assert "loading" not in err  # there is no terminal
    found = json.loads(path.read_text())
    settings = found["settings"]
    labels = [each["setting"] for each in settings]
    split = [f"{name}, slots {n}" for name in ("lru", "moe-spac:levels=8") for n in ("10%", "40")] + ["none"]
    assert labels == [f"{what}, draft {n}" for what in ("the CPU alone", *split) for n in (0, 3)]
    for each in settings:
        assert [turn["round"] for turn in each["rounds"]] == [0, 1]
        assert all(len(turn["runs"]) == len(found["prompts"]) for turn in each["rounds"])
        assert each["tokens_per_second"]["least"] <= each["tokens_per_second"]["median"]
        assert (each["ratio"] is None) == each["is_baseline"]
        assert all(run["threads"] == 1 for turn in each["rounds"] for run in turn["runs"])
    assert_ran_as_asked(settings)
    table = out.splitlines()
    assert [line[2:].split("  ")[0] for line in table[1 : 1 + len(labels)]] == labels
    marked = [line for line in table[1 : 1 + len(labels)] if line.startswith("* ")]
    fastest = max(settings, key=lambda each: each["tokens_per_second"]["median"])
    assert len(marked) == 1
    assert fastest["setting"] in marked[0]
    assert fastest["is_best"]
    assert f"for spac run: {fastest['options']}" in out
    assert "tell nothing about a GPU" in out


def assert_ran_as_asked(settings):
    """Check that slots, schedulers and drafts are those of the settings, that prompts were read, and that
    texts depend on drafts only."""
    texts = {0: set(), 3: set()}
    slots = {"10%": 16, "40": 40}
    for each in settings:
        length = int(each["setting"][-1])
        for turn in each["rounds"]:
            texts[length].add(tuple(each["text"] for each in turn["runs"]))
            for stats in turn["runs"]:
                assert stats["draft_length"] == length
                assert (stats["drafted_tokens"] > 0) == (length > 0)
                assert stats["prefilled_tokens"] == stats["prompt_tokens"] > 0
                assert stats["generated_tokens"] == 8
                if each["is_baseline"]:
                    assert stats["device"] == "cpu"
                    continue
                scheduler, *rest = each["setting"].split(", ")
                assert stats["scheduler"] == scheduler.split(":")[0]
                assert stats["slots"] == (slots[rest[0].removeprefix("slots ")] if len(rest) == 2 else 0)
                assert (stats["scheduler_options"] == {"levels": 8}) == (":" in scheduler)
    assert len(texts[0]) == len(texts[3]) == 1


def test_it_generates_what_run_does_with_the_options_it_names(bench, target, draft, capfd):
    same = ["-m", target, "-md", draft, "-p", "def f("]
    code, out, _ = bench(
        *same, "--schedulers", "ewma", "--slots", 5, "--draft-lengths", 2, "--baseline", "none", "-q",
        "--json", "-",
    )  # fmt: skip
    assert code == 0
    (found,) = json.loads(out)["settings"]
    assert found["options"] == "--scheduler ewma --slots 5 --draft-length 2"
    given = [*ONE_THREAD, "--device", "simulated", "-n", "8", "--temp", "0", "--stats", "none", "-q"]
    assert run([*map(str, same), *given, *found["options"].split()]) == 0
    assert capfd.readouterr().out == found["rounds"][0]["runs"][0]["text"] + "\n"


def test_a_target_without_experts_has_nothing_to_split(bench, tiny_model):
    code, out, _ = bench("-m", tiny_model("qwen3"), "-p", "def f(", "-q")
    assert code == 0
    assert [line[2:].split("  ")[0] for line in out.splitlines()[1:3]] == [
        "the CPU alone", "simulated alone",
    ]  # fmt: skip
    code, _, err = bench("-m", tiny_model("qwen3"), "--slots", 4)
    assert code == 2
    assert "no experts" in one_line(err)


def test_slots_that_do_not_fit_are_left_out(target):
    # The tiny model takes less than 1 MB, and its experts take more.
    memory = environment(SPAC_SIMULATED_DEVICE="memory_mb=1")
    command = [sys.executable, "-m", "spac", "bench", *SHORT, "-c", "64", "-b", "32", "-ub", "32"]
    given = ["-m", str(target), "-p", "x", "--schedulers", "lru", "--baseline", "none"]
    done = subprocess.run(
        [*command, *given, "--slots", "1", "100%", "auto"], capture_output=True, text=True, env=memory
    )
    assert done.returncode == 0, done.stderr
    assert "left out: lru, slots 100%: " in done.stderr
    assert "slots 100%" not in done.stdout
    counts = [line.split()[-3] for line in done.stdout.splitlines() if " of 15" in line]
    assert counts[0] == "1"
    assert 1 <= int(counts[1]) <= 4  # a quarter, or as many as fit


@pytest.mark.parametrize(("room", "n_loaded"), [(0, [1] * 6), (1 << 60, [1, 1, 2, 2, 2, 2])])
def test_models_side_by_side_only_where_there_is_room(target, draft, monkeypatch, room, n_loaded):
    monkeypatch.setattr("spac.bench.measure.available", lambda: room)
    base = EngineConfig(target=target, draft=draft, device="simulated", threads=1, ctx=64)
    candidates = combinations(base, [LRU], [Slots(), Slots(count=4)], [0, 2], splits=True, baseline=True)
    shared = Pairs(base, candidates, 1, None)
    shared._shares_memory = False  # then the memory that is left counts, also how much of it the draft takes
    with closing(shared):
        seen = []
        for candidate in candidates:
            pair = shared.share(candidate)
            seen.append(len(shared._loaded))
            drafted = [pair.target_context] if candidate.length == 0 else [pair.draft_context, pair.draft]
            assert None not in drafted
            assert (pair.draft_context is None) == (candidate.length == 0)
            if candidate.length == 0 and candidate.slots.is_auto:
                assert [key for key in shared._loaded if not key[0]] == [(False, False)]
            pair.close()
    assert seen == n_loaded


def test_what_comes_to_the_same_is_measured_once(target):
    base = EngineConfig(target=target, device="simulated")
    none = [Slots(count=0), Slots(share=0.0), Slots(count=4)]
    found = combinations(base, [LRU, SchedulerChoice("none"), LRU], none, [0], splits=True, baseline=False)
    assert [each.label for each in found] == ["none", "lru, slots 4"]


def sample(at, seconds):
    setting = Setting("m", None, "cpu", False, "none", (), 0, 1, 64, 0, 0.0, 0, 0, 0, 0.0)
    return Sample(at, [RunStats.of(setting, Meter(generated_tokens=12, decode_s=seconds, steps=12))], [""])


def test_ratios_are_of_the_same_round():
    baseline = Candidate("cpu", None, Slots(count=0), 0, True, is_baseline=True)
    other = Candidate("auto", SchedulerChoice("lru"), Slots(), 0, True)
    lone = Candidate("auto", SchedulerChoice("lru"), Slots(), 4, True)
    measured = {
        baseline: [sample(0, 1.0), sample(1, 4.0), sample(2, 2.0)],
        other: [sample(0, 0.5), sample(1, 1.0), sample(2, 2.0)],
        lone: [sample(0, 3.0)],
    }
    table = rows(measured)
    assert [row.ratio and row.ratio.median for row in table] == [None, 2.0, None]
    assert [row.tokens_per_second.median for row in table] == [6.0, 12.0, 4.0]
    winner = best(table)
    assert winner is table[1]
    assert rivals(table, winner) == 1
    assert "--scheduler lru --slots auto --draft-length 0; the range of 1 other" in list(lines(table, ""))[-1]


def test_all_settings_compute_with_the_same_threads(target, monkeypatch):
    """This includes the CPU alone, whose own default would be a thread per core."""
    monkeypatch.setattr("spac.bench.measure.physical_cores", lambda: 8)
    for device, given, wanted in (("simulated", 0, 7), ("simulated", 2, 2), ("cpu", 0, 8)):
        base = EngineConfig(target=target, device=device, threads=given, ctx=64)
        candidates = combinations(base, [LRU], [Slots(count=4)], [0], splits=True, baseline=True)
        with closing(Pairs(base, candidates, 1, None)) as shared:
            assert shared.base.threads == wanted
            if given:
                for candidate in candidates:
                    pair = shared.share(candidate)
                    assert pair.placement.threads == wanted
                    pair.close()


def test_a_wide_range_is_warned_of():
    baseline = Candidate("cpu", None, Slots(count=0), 0, True, is_baseline=True)
    other = Candidate("auto", SchedulerChoice("lru"), Slots(), 0, True)

    def table(*times):
        theirs = [sample(at, seconds) for at, seconds in enumerate(times)]
        return rows({baseline: theirs, other: [sample(at, 1.0) for at in range(len(times))]})

    assert widest(table(4.0, 4.4, 5.9)) is None
    assert widest(table(4.0)) is None
    assert not any("warning" in line for line in lines(table(4.0, 5.9), ""))
    wide = table(4.0, 4.0, 9.6)
    assert widest(wide) is wide[0]
    assert wide[1].spread == pytest.approx(2.4)  # the spread of its ratios, because its own rounds are equal
    *_, warning, _ = lines(wide, "")
    assert warning == (
        "warning: the rounds of 'the CPU alone, draft 0' differ by up to 2.4 times: stop other programs, and "
        "run again"
    )


def one_line(err):
    assert err.count("\n") == 1, f"one line was promised, not:\n{err}"
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schedulers", "lru", "belady"], "moe-spac"),
        (["--schedulers", "lru:depth=2"], "depth"),
        (["--schedulers"], "--schedulers"),
        (["--slots", "10%", "150%"], "0 to 1"),
        (["--slots", "some"], "'auto', a count"),
        (["--draft-lengths", "4", "many"], "roofline"),
        (["--draft-lengths", "64"], "0 to 63"),
        (["--draft-lengths", "2", "--draft-min", "3"], "--draft-min 3 is more than"),
        (["--draft-lengths", "roofline", "--deterministic"], "--deterministic"),
        (["--baseline", "vllm"], "cpu"),
        (["--repeat", "0"], "1 to 1000"),
        (["--max-tokens", "0"], "1 to 2147483647"),
        (["--device", "CUDA7"], "simulated"),
        (["--device", "cpu", "--slots", "4"], "--device cpu"),
        (["--prompt", ""], "empty"),
        (["--file", "no.txt"], "no.txt"),
        (["--json", "no/bench.json"], "no/bench.json"),
        (["--target", "no.gguf"], "no.gguf"),
        (["--draft", "draft.gguf"], "--target"),
        (["--threads", "-1"], "0 to 512"),
        (["--state", "warm"], "--state"),
        (["-c", "64", "-q", "-p", "abc " * 300], "--ctx"),
    ],
)
def test_bad_input_is_one_line(bench, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = bench(*arguments)
    assert code == 2
    assert out == ""
    assert said in one_line(err)
    assert os.listdir() == []


def test_draft_lengths_need_a_draft(bench, target):
    code, _, err = bench("-m", target, "--draft-lengths", 0, 2)
    assert code == 2
    assert "--draft FILE" in one_line(err)


def test_an_interrupt_ends_with_the_table_so_far(target, tmp_path):
    command = [
        sys.executable,
        "-c",
        INTERRUPTING,
        *SHORT,
        "--repeat",
        "50",
        "-m",
        str(target),
        "-p",
        "def f(",
    ]
    path = tmp_path / "bench.json"
    done = subprocess.run(
        [*command, "--schedulers", "lru", "--json", str(path)],
        capture_output=True, text=True, timeout=60, env=environment(),
    )  # fmt: skip
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr
    assert "* " in done.stdout
    found = json.loads(path.read_text())
    assert found["interrupted"]
    assert [len(each["rounds"]) for each in found["settings"]] == [2, 2]


INTERRUPTING = f"""
import os, sys
from spac.bench import main, measure
of = measure.Engine.generate
calls = []
def generate(*given, **named):  # Ctrl-C in the second generation of the fifth turn
    calls.append(0)
    generation = of(*given, **named)
    if len(calls) == 10:
        next(generation)
        os.kill(os.getpid(), {int(signal.SIGINT)})
    return generation
measure.Engine.generate = generate
sys.exit(main(sys.argv[1:]))
"""


def test_figures_to_send_in(tmp_path, capfd):
    """They compare both systems at one memory, and tell nothing of the user."""
    from spac import demo
    from spac.bench import PROMPTS

    path = tmp_path / "card.json"
    code = main(["--device", "simulated", "--submit", str(path)])
    said = capfd.readouterr().err
    assert code == 0, said
    assert "times as fast as llama.cpp at the same memory" in said
    text = path.read_text()
    for private in (str(tmp_path), str(demo.TARGET.parent), demo.TARGET.name, "/", os.uname().nodename):
        assert private not in text.replace("tokens/s", "") or private == "/"
    assert not any(json.dumps(prompt)[1:20] in text for prompt in PROMPTS)
    found = json.loads(text)
    assert not [each for each in found["doctor"] if "/" in each.get("found", "") + each.get("why", "")]
    ours, theirs = (
        [each for each in found["systems"] if each["system"] == name] for name in ("spac", "llama.cpp")
    )
    (mine,) = (each for each in ours if each["is_best"])
    (other,) = (each for each in theirs if each["is_best"])
    first, second = mine["rounds"][0], other["rounds"][0]
    assert mine["expert_layers_on_cpu"] is None
    layer = found["model"]["expert_bytes"] // found["model"]["expert_layers"]
    assert second["hit_rate"] is None
    assert second["vram_bytes"] <= first["vram_bytes"] < second["vram_bytes"] + 2 * layer
    assert 0 < other["expert_layers_on_cpu"] < found["model"]["expert_layers"]
    assert found["is_simulated"]
    assert found["ratio"]["least"] <= found["ratio"]["median"] <= found["ratio"]["most"]
    assert len(mine["rounds"]) == len(other["rounds"]) > 1


def test_figures_to_send_in_have_no_settings_of_their_own(bench):
    for option, value in (("--prompt", "mine"), ("--slots", "40"), ("--scheduler", "lru")):
        code, _, err = bench("--submit", "-", option, value, short=())
        assert code == 2
        assert f"--submit measures everybody's settings: leave out {option}" in err


def test_without_a_device_both_systems_are_on_the_cpu(bench):
    code, out, err = bench("--submit", "-", "--device", "cpu", short=())
    assert code == 0, err
    found = json.loads(out)
    assert {each["expert_layers_on_cpu"] for each in found["systems"]} == {None}
    assert {each["system"] for each in found["systems"]} == {"spac", "llama.cpp"}


@pytest.mark.parametrize("n", [0, 2, 5])
def test_whole_layers_on_the_cpu_give_the_split_s_text(n):
    """It is llama.cpp's own way to compute a model that the device does not hold."""
    from spac import demo
    from spac.config import SamplingConfig
    from spac.engine import Engine

    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    config = EngineConfig(demo.TARGET, device="simulated", ctx=512, threads=1, sampling=sampling, state="off")
    texts, used = [], []
    for each in (config, replace(config, cpu_expert_layers=n)):
        with closing(Engine(each)) as engine:
            generation = engine.generate("def f(n):", 32)
            texts.append("".join(generation))
            used.append(generation.stats.vram_bytes)
            assert (engine.experts is None) == (each.cpu_expert_layers is not None)
    assert texts[0] == texts[1]
    assert (used[1] > used[0]) == (n < 2)
