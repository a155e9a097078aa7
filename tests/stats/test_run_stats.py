"""The figures are derived as documented and have a stable JSON form."""

from __future__ import annotations

import dataclasses
import json

import pytest

from spac.stats import Meter, RunStats, Setting
from spac.stats.words import counted, end, number, percent, seconds, size

SETTING = Setting(
    target="target.gguf",
    draft="draft.gguf",
    device="simulated",
    device_is_simulated=True,
    scheduler="lru",
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
        "upload_bytes": 12345,
    },
)

SCHEMA_1 = [
    "schema", "reason", "tokens_per_second", "latency_ms_per_token", "latency_ms_per_step",
    "prefill_tokens_per_second", "time_to_first_token_s", "load_s", "prefill_s", "decode_s",
    "prompt_tokens", "prefilled_tokens", "generated_tokens", "acceptance", "tokens_per_step", "steps",
    "drafted_tokens", "accepted_tokens", "draft_s", "verify_s", "sample_s", "hit_rate",
    "hit_rate_distinct", "gpu_share", "cpu_share", "activations", "uploads",
    "upload_failures", "evictions", "bytes_moved", "host_waits", "host_wait_s", "host_compute_s",
    "n_experts", "slots", "slots_resident", "slot_bytes", "target", "draft", "device",
    "device_is_simulated", "scheduler", "draft_types", "draft_length", "threads", "context", "seed",
    "temp", "scheduler_options", "uploads_wasted", "evictions_early", "upload_s", "prediction",
    "reuse", "scheduler_s", "scheduler_ms_per_step", "scheduler_share",
]  # fmt: skip


def test_the_fields_of_the_schema_are_those_that_were_promised():
    data = json.loads(RunStats.of(SETTING, METER).to_json())
    assert data["schema"] == 1
    assert set(SCHEMA_1) <= set(data), "a field of schema 1 is gone: that needs another schema"
    assert set(data["bytes_moved"]) >= {"uploads", "downloads", "joins"}


def test_the_figures_are_what_their_names_say():
    stats = RunStats.of(SETTING, METER)
    assert stats.tokens_per_second == 10
    assert stats.latency_ms_per_token == 100
    assert stats.latency_ms_per_step == 250
    assert stats.prefill_tokens_per_second == 18
    assert stats.acceptance == 0.5
    assert stats.tokens_per_step == 3
    assert stats.hit_rate == stats.gpu_share == 0.75
    assert stats.cpu_share == 0.25
    assert stats.hit_rate_distinct == 0.5
    assert stats.bytes_moved["uploads"] == 12345


def test_what_cannot_be_known_is_null():
    data = json.loads(RunStats.of(SETTING, Meter()).to_json())
    for name in ("tokens_per_second", "time_to_first_token_s", "acceptance", "hit_rate", "cpu_share"):
        assert data[name] is None


@pytest.mark.parametrize(("simulated", "word"), [(True, "simulated device 75"), (False, "GPU 75")])
def test_a_simulated_device_is_called_no_gpu(simulated, word):
    stats = RunStats.of(dataclasses.replace(SETTING, device_is_simulated=simulated), METER)
    assert word in stats.table()


@pytest.mark.parametrize("meter", [METER, Meter()])
def test_the_table_has_a_line_for_every_subject(meter):
    lines = RunStats.of(SETTING, meter).table().splitlines()
    names = [line[:11].strip() for line in lines]
    assert names == [
        "speed", "prompt", "text", "speculation",
        "experts", "hit rate", "scheduler", "share", "moved", "host waits", "device",
    ]  # fmt: skip
    assert all(len(line) < 120 for line in lines)


@pytest.mark.parametrize(
    ("reason", "n_tokens", "words"),
    [("length", 30, "stopped at --max-tokens"), ("length", 511, "stopped at a full context"),
     ("stop", 30, "stopped by the model"), ("cancelled", 30, "cancelled"), ("", 30, "")],
)  # fmt: skip
def test_how_a_text_ended(reason, n_tokens, words):
    assert end(reason, n_tokens, 512) == words


def test_the_table_in_words():
    one_thread = dataclasses.replace(SETTING, threads=1)
    table = RunStats.of(one_thread, METER).table()
    assert "20 tokens, stopped at --max-tokens, seed 7" in table
    assert "1 CPU thread\n" in table + "\n"


def test_the_summary_is_three_lines():
    on_gpu = dataclasses.replace(
        SETTING, device="CUDA0", device_is_simulated=False, vram_bytes=82 * 10**8, vram_limit=12 * 10**9
    )
    speed, computed, change = RunStats.of(on_gpu, METER).summary().splitlines()
    assert speed == "speed       10 tokens/s, first token after 750 ms; 20 tokens, stopped at --max-tokens"
    assert computed == (
        "computed    GPU 75.0%, CPU 25.0% of the expert work, hit rate 75.0%; "
        "8.2 GB of 12 GB allowed on CUDA0"
    )
    assert change.startswith("to change   nothing yet")
    assert len(RunStats.of(SETTING, Meter()).summary().splitlines()) == 3


def test_the_summary_names_no_gpu_where_there_is_none():
    assert "GPU 75" not in RunStats.of(SETTING, METER).summary() + RunStats.of(SETTING, METER).table()
    on_cpu = dataclasses.replace(SETTING, device="cpu", device_is_simulated=False, n_experts=0)
    [_, computed, _] = RunStats.of(on_cpu, Meter()).summary().splitlines()
    assert computed == "computed    all on the CPU"


def test_figures_as_text():
    assert [number(v) for v in (None, 0, 1234.5, 999.6, 12.345, 0.00123)] == [
        "–", "0", "1,234", "1,000", "12.3", "0.00123",
    ]  # fmt: skip
    assert [seconds(v) for v in (None, 0, 2.5, 0.0123, 4.2e-5)] == ["–", "0 s", "2.5 s", "12.3 ms", "42 µs"]
    assert [size(v) for v in (0, 999, 1e6, 4.18e9, 5e15)] == ["0 B", "999 B", "1 MB", "4.18 GB", "5,000 TB"]
    assert [percent(v) for v in (None, 0, 0.1234, 1)] == ["–", "0%", "12.3%", "100%"]
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
