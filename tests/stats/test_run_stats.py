"""The figures are derived as documented and have a stable JSON form."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from spac.stats import Meter, RunStats, Setting
from spac.stats.words import counted, end, number, percent, seconds, size

SETTING = Setting(
    target="target.gguf",
    draft="draft.gguf",
    device="simulated",
    device_is_simulated=True,
    scheduler="lru",
    governor="roofline",
    draft_types=("draft-simple",),
    draft_length=8,
    threads=2,
    context=512,
    seed=7,
    temp=0.0,
    n_experts=128,
    slots=32,
    slot_bytes=32_000_000,
    load_s=0.5,
)
METER = Meter(
    reason="length",
    prompt_tokens=10,
    prefilled_tokens=9,
    generated_tokens=20,
    prefill_s=0.5,
    first_token_s=0.75,
    decode_s=2.0,
    steps=8,
    step_tokens=24,
    drafted=32,
    accepted=16,
    resident=30,
    experts={
        "activations": 400,
        "activations_hit": 300,
        "distinct": 100,
        "distinct_hit": 50,
        "upload_bytes": 60000,
        "upload_failures": 1,
        "upload_ns": 200_000_000,
        "host_compute_ns": 1_000_000_000,
        "host_wait_ns": 500_000_000,
        "disk_bytes": 20_000,
    },
    prompt_experts={"stream_bytes": 10**9},
    lengths=Counter({4: 7, 2: 1}),
)


def data_of(meter, **setting):
    return json.loads(RunStats.of(dataclasses.replace(SETTING, **setting), meter).to_json())


def table_of(meter=METER, **setting):
    return RunStats.of(dataclasses.replace(SETTING, **setting), meter).table()


def test_the_figures_are_what_their_names_say():
    data = data_of(METER)
    wanted = {
        "schema": 2, "tokens_per_second": 10, "prefill_tokens_per_second": 18, "acceptance": 0.5,
        "tokens_per_step": 3, "hit_rate": 0.75, "gpu_share": 0.75, "cpu_share": 0.25,
        "hit_rate_distinct": 0.5, "draft_lengths": {"2": 1, "4": 7}, "slots": 32, "target": "target.gguf",
    }  # fmt: skip
    assert {name: data[name] for name in wanted} == wanted
    assert data["bytes_moved"]["uploads"] == 60000


def test_what_cannot_be_known_is_null():
    data = data_of(Meter())
    for name in ("tokens_per_second", "time_to_first_token_s", "acceptance", "hit_rate", "cpu_share"):
        assert data[name] is None


def test_the_table_shows_what_a_person_acts_on():
    assert table_of().splitlines() == [
        "speed       10 tokens/s; 20 tokens, stopped at --max-tokens, seed 7",
        "prompt      18 tokens/s, first token after 750 ms; 10 tokens, loaded in 500 ms",
        "draft       0 to 8 tokens, mean 3.75 by draft-simple; acceptance 50.0%, 3 tokens/step",
        "hit rate    75.0%; simulated device 75.0%, CPU 25.0% of the expert work",
        "step time   CPU experts 50.0%, waits for the device 25.0%, scheduler 0%, copies beside it 10.0%",
        "copied      3 KB/token; 1 copy failed",
        "slots       30 of 32 in use for 128 experts (32 MB), by lru",
        "device      simulated (not a GPU: shows the split), 2 CPU threads",
        "to change   the simulated device only shows the split; --device cpu is faster, and `spac doctor` "
        "says why no GPU is used",
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"device_is_simulated": False}, "GPU 75.0%, CPU 25.0%"),
        ({"threads": 1}, "1 CPU thread\n"),
        ({"governor": "fixed"}, "draft       8 tokens by draft-simple;"),
        ({"draft_types": ()}, "draft       off\n"),
        ({"vram_bytes": 10**9, "vram_limit": 4 * 10**9}, ", 1 GB of 4 GB allowed, 2 CPU threads"),
        ({"paged": True}, "3 KB/token, 1 KB/token read from disk; 1 copy failed\n"),
        ({"scheduler_options": {"margin": 0.5}}, "by lru, margin=0.5\n"),
        ({"remote_layers": {"host:1": 1}}, "remote      1 layer on host:1; "),
    ],
)
def test_the_table_in_words(setting, said):
    assert said in table_of(**setting)


def test_a_model_without_experts_has_a_shorter_table():
    lines = table_of(Meter(), n_experts=0).splitlines()
    assert [line[:11].strip() for line in lines] == ["speed", "prompt", "draft", "device", "to change"]


@pytest.mark.parametrize(
    ("reason", "n_tokens", "words"),
    [("length", 30, "stopped at --max-tokens"), ("length", 511, "stopped at a full context"),
     ("stop", 30, "stopped by the model"), ("cancelled", 30, "cancelled"), ("", 30, "")],
)  # fmt: skip
def test_how_a_text_ended(reason, n_tokens, words):
    assert end(reason, n_tokens, 512) == words


@pytest.mark.parametrize(
    ("meter", "setting", "computed"),
    [
        (
            METER,
            {
                "device": "CUDA0",
                "device_is_simulated": False,
                "vram_bytes": 82 * 10**8,
                "vram_limit": 12 * 10**9,
            },
            "GPU 75.0%, CPU 25.0% of the expert work, hit rate 75.0%; 8.2 GB of 12 GB allowed on CUDA0",
        ),
        (METER, {}, "simulated device 75.0%, CPU 25.0% of the expert work, hit rate 75.0%"),
        (Meter(), {"device": "cpu", "device_is_simulated": False, "n_experts": 0}, "all on the CPU"),
    ],
)
def test_the_summary_is_three_lines(meter, setting, computed):
    speed, middle, change = RunStats.of(dataclasses.replace(SETTING, **setting), meter).summary().splitlines()
    assert middle == f"computed    {computed}"
    if meter is METER:
        assert (
            speed == "speed       10 tokens/s, first token after 750 ms; 20 tokens, stopped at --max-tokens"
        )
    assert change.startswith("to change   ")


def test_figures_as_text():
    assert [number(v) for v in (None, 0, 1234.5, 999.6, 12.345, 0.00123)] == [
        "–", "0", "1,234", "1,000", "12.3", "0.00123",
    ]  # fmt: skip
    assert [seconds(v) for v in (None, 0, 2.5, 0.0123, 4.2e-5)] == ["–", "0 s", "2.5 s", "12.3 ms", "42 µs"]
    assert [size(v) for v in (0, 999, 1e6, 4.18e9, 5e15)] == ["0 B", "999 B", "1 MB", "4.18 GB", "5,000 TB"]
    assert [percent(v) for v in (None, 0, 0.1234, 1)] == ["–", "0%", "12.3%", "100%"]
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
