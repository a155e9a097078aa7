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

from bench import cards
from bench.page import table
from spac import demo
from spac.bench import PROMPTS, main, submission
from spac.bench.candidates import Candidate, combinations
from spac.bench.figures import best, lines, rivals, rows, widest
from spac.bench.measure import Sample, with_threads
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.engine import Engine
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
    code, out, err = bench(
        "--schedulers", "lru", "moe-spac:levels=8", "none", "--slots", "10%", 40,
        "--draft-lengths", 0, 3, "--repeat", 2, "--json", tmp_path / "bench.json",
    )  # fmt: skip
    assert (code, "loading" in err) == (0, False), err  # there is no terminal
    found = json.loads((tmp_path / "bench.json").read_text())
    settings = found["settings"]
    labels = [each["setting"] for each in settings]
    split = [f"{name}, slots {n}" for name in ("lru", "moe-spac:levels=8") for n in ("10%", "40")] + ["none"]
    assert labels == [f"{what}, draft {n}" for what in ("the CPU alone", *split) for n in (0, 3)]
    texts = {0: set(), 3: set()}
    for each in settings:
        assert [turn["round"] for turn in each["rounds"]] == [0, 1]
        assert all(len(turn["runs"]) == len(found["prompts"]) for turn in each["rounds"])
        assert each["tokens_per_second"]["least"] <= each["tokens_per_second"]["median"]
        assert (each["ratio"] is None) == each["is_baseline"]
        for turn in each["rounds"]:
            texts[int(each["setting"][-1])].add(tuple(stats["text"] for stats in turn["runs"]))
            for stats in turn["runs"]:
                assert_ran_as_asked(stats, each)
    assert [len(each) for each in texts.values()] == [1, 1]  # texts depend on drafts only
    table = out.splitlines()[1 : 1 + len(labels)]
    assert [line[2:].split("  ")[0] for line in table] == labels
    [marked] = [line for line in table if line.startswith("* ")]
    fastest = max(settings, key=lambda each: each["tokens_per_second"]["median"])
    assert fastest["is_best"]
    assert fastest["setting"] in marked
    assert f"for spac run: {fastest['options']}" in out
    assert "tell nothing about a GPU" in out


def assert_ran_as_asked(stats, each):
    """Check that slots, schedulers and drafts are those of the setting, and that prompts were read."""
    length = int(each["setting"][-1])
    assert (stats["draft_length"], stats["drafted_tokens"] > 0) == (length, length > 0)
    assert stats["prefilled_tokens"] == stats["prompt_tokens"] > 0
    assert (stats["generated_tokens"], stats["threads"]) == (8, 1)
    if each["is_baseline"]:
        assert stats["device"] == "cpu"
        return
    scheduler, *rest = each["setting"].split(", ")
    slots = {"slots 10%": 16, "slots 40": 40}.get(rest[0], 0)
    assert (stats["scheduler"], stats["slots"]) == (scheduler.split(":")[0], slots)
    assert (stats["scheduler_options"] == {"levels": 8}) == (":" in scheduler)


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
    named = [line[2:].split("  ")[0] for line in out.splitlines()[1:3]]
    assert (code, named) == (0, ["the CPU alone", "simulated alone"])
    code, _, err = bench("-m", tiny_model("qwen3"), "--slots", 4)
    assert (code, "no experts" in one_line(err)) == (2, True)


def test_slots_that_do_not_fit_are_left_out(target):
    # The tiny model takes less than 1 MB, and its experts take more.
    words = ["-c", "64", "-b", "32", "-ub", "32", "-p", "x", "--schedulers", "lru", "--baseline", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "spac", "bench", *SHORT, *words, "-m", target, "--slots", "1", "100%", "auto"],
        capture_output=True, text=True, env=environment(SPAC_SIMULATED_DEVICE="memory_mb=1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out: lru, slots 100%: " in done.stderr
    assert "slots 100%" not in done.stdout
    counts = [int(line.split()[-3]) for line in done.stdout.splitlines() if " of 15" in line]
    assert counts[0] == 1
    assert 1 <= counts[1] <= 4  # a quarter, or as many as fit


def test_what_comes_to_the_same_is_measured_once(target):
    base = EngineConfig(target=target, device="simulated")
    none = [Slots(count=0), Slots(share=0.0), Slots(count=4)]
    found = combinations(base, [LRU, SchedulerChoice("none"), LRU], none, [0], splits=True, baseline=False)
    assert [each.label for each in found] == ["none", "lru, slots 4"]


def sample(at, seconds):
    setting = Setting(
        target="m", draft=None, device="cpu", device_is_simulated=False, scheduler="none", draft_types=(),
        draft_length=0, threads=1, context=64, seed=0, temp=0.0, n_experts=0, slots=0, slot_bytes=0,
        load_s=0.0,
    )  # fmt: skip
    return Sample(at, [RunStats.of(setting, Meter(generated_tokens=12, decode_s=seconds, steps=12))], [""])


BASELINE = Candidate("cpu", None, Slots(count=0), 0, True, is_baseline=True)
OTHER, LONE = (Candidate("auto", LRU, Slots(), n, True) for n in (0, 4))


def table_of(**seconds):
    """Return the rows of these candidates, for the seconds of their rounds."""
    named = {"baseline": BASELINE, "other": OTHER, "lone": LONE}
    return rows(
        {named[name]: [sample(*each) for each in enumerate(times)] for name, times in seconds.items()}
    )


def test_ratios_are_of_the_same_round():
    table = table_of(baseline=[1.0, 4.0, 2.0], other=[0.5, 1.0, 2.0], lone=[3.0])
    assert [row.ratio and row.ratio.median for row in table] == [None, 2.0, None]
    assert [row.tokens_per_second.median for row in table] == [6.0, 12.0, 4.0]
    winner = best(table)
    assert (winner is table[1], rivals(table, winner)) == (True, 1)
    assert "--scheduler lru --slots auto --draft-length 0; the range of 1 other" in list(lines(table, ""))[-1]


@pytest.mark.parametrize(
    ("device", "given", "wanted"), [("simulated", 0, 7), ("simulated", 2, 2), ("cpu", 0, 8)]
)
def test_all_settings_compute_with_the_same_threads(monkeypatch, device, given, wanted):
    """This includes the CPU alone, whose own default would be a thread per core."""
    monkeypatch.setattr("spac.bench.measure.physical_cores", lambda: 8)
    base, simulated = with_threads(EngineConfig(target="x.gguf", device=device, threads=given))
    assert (base.threads, simulated) == (wanted, device == "simulated")


def test_a_wide_range_is_warned_of():
    def table(*times):
        return table_of(baseline=times, other=[1.0] * len(times))

    assert widest(table(4.0, 4.4, 5.9)) is widest(table(4.0)) is None
    assert not any("warning" in line for line in lines(table(4.0, 5.9), ""))
    wide = table(4.0, 4.0, 9.6)
    assert widest(wide) is wide[0]
    assert wide[1].spread == pytest.approx(2.4)  # the spread of its ratios, because its own rounds are equal
    *_, warning, _ = lines(wide, "")
    differ = "the rounds of 'the CPU alone, draft 0' differ by up to 2.4 times"
    assert warning == f"warning: {differ}: stop other programs, and run again"


def one_line(err):
    assert err.count("\n") == 1, f"one line was promised, not:\n{err}"
    assert "Traceback" not in err
    return err


def test_an_interrupt_ends_with_the_table_so_far(target, tmp_path):
    path = tmp_path / "bench.json"
    given = ["--repeat", "50", "-m", str(target), "-p", "def f(", "--schedulers", "lru", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTING, *SHORT, *given],
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


@pytest.fixture
def short_texts(monkeypatch):
    """Measure short texts, with one thread."""
    monkeypatch.setattr("spac.machine.cpu.physical_cores", lambda: 1)
    monkeypatch.setattr(submission, "TEXT_TOKENS", 8)
    monkeypatch.setattr(submission, "PROMPT_TOKENS", 64)


def test_figures_to_send_in(short_texts, tmp_path, capfd):
    """They compare both systems at one memory, and tell nothing of the user."""
    code = main(["--device", "simulated", "--submit", str(tmp_path / "card.json")])
    said = capfd.readouterr().err
    assert code == 0, said
    assert "times as fast as llama.cpp at the same memory" in said
    text = (tmp_path / "card.json").read_text()
    private = (str(tmp_path), str(demo.TARGET.parent), demo.TARGET.name, os.uname().nodename)
    assert not [each for each in (*private, *(json.dumps(each)[1:20] for each in PROMPTS)) if each in text]
    found = json.loads(text)
    assert not [each for each in found["doctor"] if "/" in each.get("found", "") + each.get("why", "")]
    assert found["is_simulated"]
    assert found["ratio"]["least"] <= found["ratio"]["median"] <= found["ratio"]["most"]
    [mine, other] = (
        next(each for each in found["systems"] if each["system"] == name and each["is_best"])
        for name in ("spac", "llama.cpp")
    )
    first, second = mine["rounds"][0], other["rounds"][0]
    layers = found["model"]["expert_layers"]
    assert (mine["expert_layers_on_cpu"], second["hit_rate"]) == (None, None)
    assert 0 < other["expert_layers_on_cpu"] < layers
    more = 2 * found["model"]["expert_bytes"] // layers
    assert second["vram_bytes"] <= first["vram_bytes"] < second["vram_bytes"] + more
    assert len(mine["rounds"]) == len(other["rounds"]) > 1
    assert_gives_a_row(found)


def assert_gives_a_row(card):
    """Check the row of a file in the documents' table of cards, and that the row replaces the old ones."""
    cells = dict(zip(cards.HEAD, cards.row(card), strict=True))
    assert cells["model"].startswith("qwen3moe, 32 experts, 0.0 GB, Q8_0")
    assert f"{card['ratio']['median']:.2f}" in cells["ratio"]
    assert cells["card"] == "no GPU"
    page = f"before\n{cards.BEGIN}\nold\n{cards.END}\nafter\n"
    text = cards.page_with(page, table(cards.HEAD, [cards.row(card)]))
    assert text.startswith("before\n")
    assert text.endswith(f"{cards.END}\nafter\n")
    assert "old" not in text


def test_without_a_device_both_systems_are_on_the_cpu(short_texts, bench):
    code, out, err = bench("--submit", "-", "--device", "cpu", short=())
    assert code == 0, err
    found = json.loads(out)
    assert {each["expert_layers_on_cpu"] for each in found["systems"]} == {None}
    assert {each["system"] for each in found["systems"]} == {"spac", "llama.cpp"}
    assert_gives_a_row(found)


@pytest.mark.parametrize("n", [0, 2, 5])
def test_whole_layers_on_the_cpu_give_the_split_s_text(n):
    """It is llama.cpp's own way to compute a model that the device does not hold."""
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
