"""Programs take a model by name, as llama.cpp's do, and `spac models` lists what is there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from spac import _core, models
from spac.cli.options import target_of
from spac.config import EngineConfig, SamplingConfig
from spac.config.values import VramLimit
from spac.costs import store
from spac.engine import Engine
from spac.machine.cpu import default_threads, physical_cores
from spac.model import expected_speed, kernels, known
from spac.model.devices import device_room
from spac.model.gguf.check import check_model
from spac.model.hub import Name
from spac.model.known import MODELS
from tests.cli.conftest import Outcome, environment
from tests.cli.options_page import parser_of
from tests.costs.machine import costs
from tests.model.hub_server import running

PROGRAMS = ("run", "chat", "serve", "bench", "doctor")


@pytest.fixture
def hub(target, draft):
    """Return a hub with a model of two files and a draft, for other processes."""
    pytest.importorskip("huggingface_hub")
    with running() as found:
        found.repos["tiny/moe-GGUF"] = {
            "moe-Q4_K_M.gguf": target.read_bytes(), "README.md": b"", "moe-Q8_0.gguf": b"nothing",
        }  # fmt: skip
        found.repos["tiny/draft"] = {"draft.gguf": draft.read_bytes()}
        yield found


@pytest.fixture
def spac(hub, programs, tmp_path):
    """Return `spac("run", "-hf", …)`, which runs a program with the hub and a cache of its own."""

    def run(*arguments, **env):
        home = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
        done = programs.run("spac", [*map(str, arguments)], tmp_path, environment(**home, **env), None)
        found = Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in found.err
        return found

    return run


def test_a_run_by_name_then_offline(spac, hub):
    words = ("run", "-p", "x", "-n", 3, "--stats", "none", "-t", 1, "--draft-max", 2, "-hf", "tiny/moe-GGUF")
    first = spac(*words, "-hfd", "tiny/draft", "--temp", 0)
    assert first.code == 0, first.err
    assert hub.ranges == ["", ""]
    for more in (["--offline"], []):
        again = spac(*words, "-hfd", "tiny/draft", "--temp", 0, *more, HF_HUB_OFFLINE="1")
        assert (again.code, again.out) == (0, first.out), again.err
    [row] = [row for row in json.loads(spac("models", "--json").out)["models"] if "moe" in row["name"]]
    assert (row["name"], row["experts"], row["expert_layers"]) == ("tiny/moe-GGUF:Q4_K_M", 5, 3)
    refused = spac(*words[:-2], "-hf", "tiny/moe-GGUF:Q9")
    said = "spac run: error: tiny/moe-GGUF has no quantization 'Q9': it has Q4_K_M, Q8_0"
    assert refused.refusal == said


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_the_options(program):
    words = ["-hf", "a/b:Q8_0", "--hf-file", "c.gguf", "-hft", "hf_x", "--offline"]
    given = parser_of(program).parse_args([*words, *([] if program == "doctor" else ["-hfrd", "a/d"])])
    found = (given.hf_repo, given.hf_file, given.hf_token, given.offline)
    assert found == (Name("a/b", "Q8_0"), "c.gguf", "hf_x", True)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("words", [["{}"], ["-hf", "{}"], ["--target", "{}"]])
def test_short_names(program, words, monkeypatch, tmp_path):
    fetched = []
    monkeypatch.setattr("spac.cli.options.fetch", lambda name, *_: fetched.append(name) or tmp_path)
    for text in ("gpt-oss-20b", "Qwen3-30B-A3B:Q8_0"):
        options = parser_of(program).parse_args([word.format(text) for word in words])
        assert target_of(options) == tmp_path
    assert fetched == [Name("ggml-org/gpt-oss-20b-GGUF"), Name("unsloth/Qwen3-30B-A3B-GGUF", "Q8_0")]


def test_a_file_goes_before_a_short_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt-oss-20b").touch()
    for words in (["gpt-oss-20b"], ["-m", "gpt-oss-20b"]):
        assert target_of(parser_of("run").parse_args(words)) == Path("gpt-oss-20b")


def test_a_short_name_is_a_repository():
    for model in MODELS:
        assert known.hub_name(model.name) == model.hub == known.hub_name(model.name.upper())
        assert "/" in Name.parse(model.name).repo
        assert model.device_bytes > model.expert_bytes > 0.8 * model.device_bytes


# spac models


SIZES = {"n_expert": 12, "n_ff_exp": 128}


@pytest.fixture
def rows(tiny_model, tmp_path, monkeypatch):
    """Return a function that makes the rows of two models and of a damaged file, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "bad.gguf").write_text("GGUF")
    files = [
        ("a/Qwen3-30B-A3B-GGUF:F32", tiny_model("qwen3moe", **SIZES)),
        ("a/Qwen3-0.6B-GGUF:F32", tiny_model("qwen3")),
        ("a/bad:Q8_0", tmp_path / "bad.gguf"),
    ]
    return lambda limit: models.rows_of(files, device_room(limit and VramLimit.parse(limit)))


def test_what_would_fit(rows, monkeypatch):
    monkeypatch.delenv("SPAC_DEVICE", raising=False)
    moe, dense, bad = rows("300M")
    assert (moe.experts, moe.expert_layers, moe.active, moe.slots) == (12, 3, 2, 36)
    assert (dense.experts, dense.slots, dense.dense_fits) == (0, None, True)
    assert "bad.gguf" in bad.fault
    assert (moe.tokens_per_second, moe.drafts) == (None, ("a/Qwen3-0.6B-GGUF:F32 (untried)",))
    text = "\n".join(models.table(rows("300M"), device_room(VramLimit.parse("300M"))))
    assert all(words in text for words in ("36 of 36", "not measured"))
    moe = rows("256M")[0]
    assert (moe.slots, moe.dense_fits) == (0, False)
    assert "the rest does not fit" in models._cells(moe)


def test_the_speed_is_that_of_measured_costs(rows, tiny_model, monkeypatch, tmp_path):
    monkeypatch.setenv("SPAC_DEVICE", "simulated")
    target = tiny_model("qwen3moe", **SIZES)
    key = store.Key.of("costs", device="simulated, 1 MiB, paged", threads=7, target=target)
    store.put(key, {"costs": costs().to_dict()})
    (store.folder() / "costs-other.npz").write_text("{}")
    moe, dense, _ = rows(None)
    assert moe.tokens_per_second == pytest.approx(1 / costs().verify(1))
    assert (moe.speed_from, dense.tokens_per_second, dense.speed_from) == ("costs", None, "")
    assert expected_speed.kept_costs(target, "CUDA0") is None


def test_the_speed_on_the_cpu_alone(rows, tiny_model, monkeypatch):
    monkeypatch.setenv("SPAC_DEVICE", "cpu")
    lines = list(models.table(rows(None), None))
    assert "tokens/s on the CPU alone" in lines[0]
    assert "not measured" in lines[1]
    assert not [line for line in lines if line.startswith("tokens/s (")]
    target, sampling = tiny_model("qwen3moe", **SIZES), SamplingConfig(ignore_eos=True)
    with Engine(EngineConfig(target, device="cpu", threads=1, ctx=128, sampling=sampling)) as engine:
        "".join(engine.generate("x", 40))
    found = rows(None)
    measured = expected_speed.kept_costs(target, "cpu")
    assert found[0].tokens_per_second == 1 / measured.verify(1)
    assert [row.speed_from for row in found] == ["runs", "", ""]
    lines = list(models.table(found, None))
    assert lines[1].endswith(" (runs)")
    assert [line for line in lines if line.startswith("tokens/s (runs): ")]


@pytest.fixture
def quantized(tiny_model):
    """Return the facts of a model most of whose weights are of a type that spac has kernels for."""
    kinds = [kind for kind in ("q8_0", "q4_0") if kind in _core.trusted_cpu_kernels()]
    if not kinds:
        pytest.skip("this build has no kernels")
    return check_model(tiny_model("qwen3moe", types={"*_exps": kinds[0].upper()})), kinds[0]


def test_what_a_token_reads():
    types = {"types": {"Q4_K": 900, "Q6_K": 100}, "expert_types": {"Q4_K": 800}, "table_types": {"Q6_K": 30}}
    info = SimpleNamespace(**types, n_expert=8, n_expert_used=2)
    assert expected_speed.read_bytes(info) == {"Q4_K": 200 + 100, "Q6_K": 70}


def test_a_speed_from_other_models_runs(quantized, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    info, kind = quantized
    monkeypatch.setattr(expected_speed, "LEAST_MEASURED", 0.01)  # the tiny model's dense part is large
    assert expected_speed.expected_speed(info, "cpu") is None
    threads = default_threads(physical_cores())
    store.put(kernels.keys_of([kind], threads)[kind], {"times": {"ggml": [0.125] * 2}})
    speed = expected_speed.expected_speed(info, "cpu")
    n_bytes = sum(expected_speed.read_bytes(info).values())
    bytes_a_second = threads * 8 * _core.cpu_kernels_trial_bytes(kind)
    assert speed == expected_speed.Speed(pytest.approx(bytes_a_second / n_bytes), expected_speed.WEIGHTS)
    assert expected_speed.expected_speed(info, "CUDA0") is None
    monkeypatch.setattr(expected_speed, "LEAST_MEASURED", 0.99)
    assert expected_speed.expected_speed(info, "cpu") is None


def test_layers_that_draft_are_named(tiny_model):
    files = [
        ("x/GLM-4.5-Air-GGUF:Q4_K_M", tiny_model("glm4moe", n_layer=4, options={"mtp": 1})),
        ("x/gpt-oss-120b-GGUF:MXFP4", tiny_model("qwen3moe")),
    ]
    own, missing = models.rows_of(files, None)
    assert own.drafts == ("its own layers, as long as they pay (--draft-type auto)",)
    assert missing.drafts == ("gpt-oss-20b, which is not in the cache (untried)",)


def test_the_demo_pair_is_the_one_that_was_tried():
    rows = models.rows_of(models._files(quiet=True)[:2], None)
    assert [row.drafts for row in rows] == [("demo draft (tried)",), ()]
    assert "a draft for demo: demo draft (tried)" in models.table(rows, None)


QWEN = "Qwen/Qwen3-0.6B-GGUF:Q8_0"


@pytest.mark.parametrize(("target", "draft"), [
    ("Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", QWEN),
    ("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M", "unsloth/Qwen3-1.7B-GGUF:Q4_K_M"),
    ("unsloth/Qwen3-235B-A22B-Instruct-2507-GGUF:Q4_K_M", QWEN),
    ("ggml-org/gpt-oss-120b-GGUF:MXFP4", "ggml-org/gpt-oss-20b-GGUF:MXFP4"),
    ("bartowski/DeepSeek-Coder-V2-Instruct-GGUF:Q4_K_M", "a/DeepSeek-Coder-V2-Lite-Instruct-GGUF:Q4_K_M"),
])  # fmt: skip
def test_published_names_are_known(target, draft):
    info = SimpleNamespace(has_mtp=False)
    others = [target, draft, "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0", "a/b"]
    assert list(models._drafts(target, info, others)) == [f"{draft} (untried)"]
    assert list(models._drafts(draft, info, others)) == []
