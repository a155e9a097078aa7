"""llama.cpp's settings work through `spac.Llama`, from a configuration as in `spac serve`, and by llama_cpp's
own names. The target computes what it computes in an engine (tests/model/test_llama_cpp_settings.py)."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.llama_cpp_python.keywords import llama_keywords
from spac.llama_cpp_python.llama import Llama
from spac.model.gguf.check import check_model
from tests.engine.conftest import memory
from tests.llama_cpp_python.conftest import TARGET
from tests.model.test_llama_cpp_settings import (
    PLAIN,
    SETTINGS,
    logits,
    opened,
    settings_of,
)
from tools.compare.driver import first_difference
from tools.compare.script import Logits
from tools.models import write_adapter

SIZES: dict[str, Any] = {"ctx": PLAIN.n_ctx, "batch": PLAIN.n_batch, "ubatch": PLAIN.n_ubatch}
BASE: dict[str, Any] = {"device": "simulated", "threads": 1, "flash_attn": "off", **SIZES}


@pytest.fixture(scope="module")
def models(tiny_model):
    return {family: tiny_model(family) for family in ("qwen3moe", "gpt-oss")}


@pytest.fixture(scope="module")
def adapter(models, tmp_path_factory):
    return write_adapter(tmp_path_factory.mktemp("lora") / "adapter.gguf", models["qwen3moe"])


@pytest.fixture(scope="module")
def expected(models, adapter):
    found = {}
    for name, setting in SETTINGS.items():
        with opened(models[setting.family], **settings_of(setting.ours, adapter)) as pair:
            found[name] = logits(pair)
    return found


def computed(llm: Llama) -> dict[str, Logits]:
    return logits(llm.engine._pair)


@pytest.mark.parametrize(
    "name", ["two layers", *(name for name, each in SETTINGS.items() if "override_kv" in each.ours)]
)
def test_from_a_configuration(name, models, adapter, expected):
    """Its options are those of the engine, and a note says that layers are left out."""
    setting = SETTINGS[name]
    config = EngineConfig(models[setting.family], **{**BASE, **settings_of(setting.ours, adapter)})
    with closing(Llama.from_config(config, verbose=False)) as llm:
        assert first_difference(name, "Llama", computed(llm), expected[name]) is None
        assert len([note for note in llm.notes if "--gpu-layers" in note]) == (name == "two layers")


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "no layer"])  # 0 means all of them
def test_by_the_names_of_llama_cpp(name, models, adapter, expected):
    setting = SETTINGS[name]
    config = EngineConfig(models[setting.family], **{**BASE, **settings_of(setting.ours, adapter)})
    keywords = {**llama_keywords(config), "device": "simulated", "lora": config.lora, "verbose": False}
    with closing(Llama(str(config.target), **keywords)) as llm:
        assert first_difference(name, "Llama", computed(llm), expected[name]) is None
        notes = [note for note in llm.notes if "--gpu-layers" in note]
        assert len(notes) == (name in ("two layers", "the output"))


def test_as_many_layers_as_fit(models):
    base = {"device": "simulated", "flash_attn": "off", **SIZES}
    with opened(models["qwen3moe"], gpu_layers=3) as pair:
        limit = memory().used + 10_000  # 10,000 bytes are for a session
        expected = logits(pair)
    try:
        config = EngineConfig(models["qwen3moe"], **base, threads=1, gpu_layers="auto", vram_limit=limit)
        with closing(Llama.from_config(config, verbose=False)) as llm:
            assert llm.model_params.n_gpu_layers == 3
            _core.set_memory_limit("simulated", 0)  # slots need more
            assert first_difference("auto", "Llama", computed(llm), expected) is None
    finally:
        _core.set_memory_limit("simulated", 0)
    assert memory().used == 0


def test_lora_path(models, adapter, expected):
    """A draft may have open what llama_cpp leaves open."""
    config = EngineConfig(models["qwen3moe"], **BASE)
    keywords = {**llama_keywords(config), "device": "simulated", "verbose": False}
    with closing(Llama(str(config.target), lora_path=str(adapter), **keywords)) as llm:
        assert first_difference("lora_path", "Llama", computed(llm), expected["an adapter"]) is None
    with pytest.raises(InputError, match="lora and lora_path"):
        Llama(str(config.target), lora_path=str(adapter), lora=adapter, **keywords)
    del keywords["flash_attn"]
    with closing(Llama(str(config.target), **keywords)) as llm:
        assert llm.engine.config.flash_attn == "auto"
        assert llm.context_params.flash_attn_type == 0, "llama_cpp's own default"


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("family", ["qwen3moe", "qwen3"])
def test_plain_llama_cpp_has_them_too(tiny_model, tmp_path, family, exact):
    """Settings work where nothing is split: on the CPU, and in models without experts.

    `from_config` uses llama.cpp's loop there too, and the class itself uses llama_cpp's loop.
    """
    path = tiny_model(family)
    lora = write_adapter(tmp_path / "adapter.gguf", path, r"attn_q\.weight")
    base = {**BASE, "device": "cpu"} if family == "qwen3moe" else BASE

    def text(**options: Any) -> list[int]:
        config = EngineConfig(path, **{**base, **options})
        keywords = {**llama_keywords(config), "device": config.device, "verbose": False}
        plainly = partial(Llama, str(path), lora=options.get("lora", ()), **keywords)
        with closing(Llama.from_config(config, verbose=False) if exact else plainly()) as llm:
            assert (llm.engine is not None) == exact
            tokens = llm.generate([5, 6, 7], temp=0.0)
            return [next(tokens) for _ in range(12)]

    plain = text()
    assert text(lora=lora) != plain
    assert text(lora=[(lora, 0.0)]) == plain
    assert text(rope_freq_base=10.0) != plain
    assert text(cache_type_k="q4_0", cache_type_v="q4_0", flash_attn="auto") != plain


def test_the_draft_is_in_accord(models, tiny_model):
    options = {
        "flash_attn": True, "offload_kqv": False, "swa_full": True, "n_gpu_layers": 3, "use_mmap": False,
        "use_mlock": True, "rope_scaling_type": 2, "rope_freq_base": 500.0, "yarn_orig_ctx": 64,
        "kv_overrides": {"general.name": "x"}, "n_threads": 1, "n_threads_batch": 2, "type_k": 8,
        "cache_type_k_draft": "q8_0", "n_ctx": 256, "device": "simulated", "verbose": False,
    }  # fmt: skip
    with closing(Llama(str(models["qwen3moe"]), draft=tiny_model("qwen3"), **options)) as llm:
        config = llm.engine.config
        assert (config.flash_attn, config.kv_offload, config.gpu_layers.count) == ("on", False, 3)
        assert (config.load_mode, config.rope_scaling, config.rope_freq_base) == ("mlock", "yarn", 500.0)
        assert (config.yarn_orig_ctx, config.threads_batch) == (64, 2)
        assert config.override_kv == {"general.name": "x"}
        assert llm.context_params.type_k == 8
        assert llm.engine._pair.draft_context is not None
        assert next(iter(llm.generate([5, 6, 7], temp=0.0))) >= 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache_type_k": "q8_0"}, "llama_cpp calls it type_k"), ({"type_v": 8}, "quantized V cache"),
        ({"gpu_layers": 3}, "llama_cpp calls it n_gpu_layers"),
        ({"override_kv": {}}, "llama_cpp calls it kv_overrides"),
        ({"kv_overrides": {"qwen3moe.expert_used_count": 77}}, "expert_used_count is 77"),
        ({"lora": "nowhere.gguf"}, "nowhere.gguf: the LoRA adapter cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(models, options, said):
    with pytest.raises(InputError, match=said):
        Llama(str(models["qwen3moe"]), device="simulated", verbose=False, n_ctx=256, **options)


def test_serve_loads_what_its_options_say(models, adapter):
    from spac.cli.options import read_config
    from spac.serve.app import make_parser

    words = ["-ngl", "3", "-fa", "auto", "-ctk", "q8_0", "-ctv", "q5_1", "--no-mmap", "-c", "256", "-t", "1"]
    words += ["--device", "simulated", "--rope-scale", "2", "-tb", "2", "--lora-scaled", f"{adapter}:0.5"]
    options = make_parser().parse_args([*words, "--override-kv", "qwen3moe.expert_used_count=int:1"])
    config = read_config(options, models["qwen3moe"], None)
    with closing(Llama.from_config(config, verbose=False)) as llm:
        params = llm.context_params
        assert (params.type_k, params.type_v, params.flash_attn_type) == (8, 7, -1)
        assert (params.rope_freq_scale, params.n_threads, params.n_threads_batch) == (0.5, 1, 2)
        assert (llm.model_params.n_gpu_layers, llm.model_params.load_mode) == (3, 0)
        assert llm.metadata["qwen3moe.expert_used_count"] == "2", "the file's"
        with opened(
            models["qwen3moe"], gpu_layers=3, flash_attn="auto", cache_type_k="q8_0", cache_type_v="q5_1",
            rope_freq_scale=0.5, lora=[(adapter, 0.5)], override_kv={"qwen3moe.expert_used_count": 1},
        ) as pair:  # fmt: skip
            assert first_difference("serve", "Llama", computed(llm), logits(pair)) is None


@pytest.mark.parametrize(("ctx", "n"), [(100, 256), (256, 256), (0, 2048)])
def test_a_context_that_is_rounded_up_is_noted(ctx, n):
    """By default, it is not longer than what the model was trained with."""
    note = "--ctx 100: the context holds 256 tokens, a multiple of 256"
    config = EngineConfig(target=TARGET, ctx=ctx, threads=1, device="simulated")
    with Engine(config) as engine, closing(Llama.from_config(config, verbose=False)) as llm:
        assert (note in engine.notes) == (note in llm.notes) == (ctx == 100)
        assert llm.n_ctx() == n <= check_model(TARGET).n_ctx_train
