"""llama.cpp's settings of models and contexts have llama.cpp's meaning. With each of them, an engine's
contexts compute bit for bit what an unpatched llama.cpp computes. Without the setting, results differ."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.cli.spellings import SPELLINGS
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError
from spac.model.pair import ModelPair
from tests.engine.conftest import memory
from tests.forked import run_worker
from tools.compare import Case, Job, Run, Settings
from tools.compare.driver import first_difference
from tools.compare.script import SCRIPTS, Logits
from tools.models import write_adapter

# isort: split
from tools.compare import decoder  # this import must follow spac's, because spac decides on the library

PLAIN = Settings(n_ctx=256, n_batch=64, n_ubatch=64)
SCRIPT = "short"


@dataclass(frozen=True)
class Setting:
    """A setting of the engine, and the same setting in the reference library's terms."""

    ours: dict[str, Any]
    context: dict[str, float] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)
    changes: bool = True  # true if some logit differs from those without the setting
    family: str = "qwen3moe"


YARN = {
    "rope_freq_scale": 0.25, "yarn_orig_ctx": 2048, "yarn_ext_factor": 0.75, "yarn_attn_factor": 1.25,
    "yarn_beta_slow": 2.0, "yarn_beta_fast": 16.0,
}  # fmt: skip
SETTINGS = {
    "K and V in Q8_0": Setting({"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"},
                               {"type_k": 8, "type_v": 8, "flash_attn_type": 1}),
    "K in Q4_0": Setting({"cache_type_k": "q4_0"}, {"type_k": 2}),
    "V in F32": Setting({"cache_type_v": "f32"}, {"type_v": 0}),
    "K in BF16": Setting({"cache_type_k": "bf16"}, {"type_k": 30}),
    "flash attention": Setting({"flash_attn": "on"}, {"flash_attn_type": 1}),
    "a window's cache": Setting({"swa_full": True}, changes=False, family="gpt-oss"),
    "rope's base": Setting({"rope_freq_base": 500.0}, {"rope_freq_base": 500.0}),
    "linear": Setting({"rope_scaling": "linear", "rope_freq_scale": 0.25},
                      {"rope_scaling_type": 1, "rope_freq_scale": 0.25}),
    "YaRN": Setting({"rope_scaling": "yarn", **YARN}, {"rope_scaling_type": 2, **YARN}),
    **{
        f"YaRN without {name}": Setting({"rope_scaling": "yarn", **YARN, name: other},
                                        {"rope_scaling_type": 2, **YARN, name: other})
        for name, other in {
            "yarn_orig_ctx": 128, "yarn_ext_factor": 0.0, "yarn_beta_slow": 1.0, "yarn_beta_fast": 32.0,
        }.items()
    },
    "attention's factor": Setting({"yarn_attn_factor": 1.25}, {"yarn_attn_factor": 1.25}),
    "fewer experts": Setting({"override_kv": {"qwen3moe.expert_used_count": 1}},
                             case={"overrides": {"qwen3moe.expert_used_count": 1}}),
    **{
        name: Setting(ours, changes=False)
        for name, ours in {
            "nothing": {}, "no offload": {"kv_offload": False}, "two layers": {"gpu_layers": 3},
            "the output": {"gpu_layers": 1}, "no layer": {"gpu_layers": "0"}, "read": {"load_mode": "none"},
            "read past the cache": {"load_mode": "dio"}, "locked": {"load_mode": "mmap+mlock"},
            "paged": {"paging": "on"}, "threads": {"threads_batch": 2},
        }.items()
    },
    "an adapter": Setting({"lora": "ADAPTER"}, case={"lora": "ADAPTER"}),
    "half an adapter": Setting({"lora": [("ADAPTER", 0.5)]}, case={"lora": "ADAPTER", "lora_scale": 0.5}),
}  # fmt: skip
CONTEXT = {item.name for item in dataclasses.fields(EngineConfig) if item.metadata.get("group")}
ELSEWHERE = {
    "ctx", "batch", "ubatch", "threads", "cache_ram", "ctx_checkpoints", "checkpoint_min_step",
    "parallel",
    "mmproj", "mmproj_offload", "image_min_tokens", "image_max_tokens",
    "split_mode", "tensor_split", "main_gpu",
}  # fmt: skip
"""Settings of the same group that other tests cover."""


@pytest.fixture(scope="module")
def models(tiny_model):
    return {family: tiny_model(family) for family in ("qwen3moe", "gpt-oss")}


@pytest.fixture(scope="module")
def adapter(models, tmp_path_factory):
    return write_adapter(tmp_path_factory.mktemp("lora") / "adapter.gguf", models["qwen3moe"])


@pytest.fixture(scope="module")
def reference(models, adapter, reference_lib, tmp_path_factory):
    cases = []
    for name, setting in SETTINGS.items():
        case = {key: str(adapter) if value == "ADAPTER" else value for key, value in setting.case.items()}
        settings = dataclasses.replace(PLAIN, params=setting.context)
        cases.append(
            Case(name, str(models[setting.family]), settings, (Run(),), script=SCRIPT, **case)
        )  # fmt: skip
    return run_worker(
        "reference", Job(tuple(cases)), tmp_path_factory.mktemp("reference"), lib_path=reference_lib
    )


def settings_of(ours: dict[str, Any], adapter: Path) -> dict[str, Any]:
    if "lora" not in ours:
        return ours
    return {"lora": adapter if ours["lora"] == "ADAPTER" else [(adapter, scale) for _, scale in ours["lora"]]}


def opened(target: Path, **options: Any) -> closing[ModelPair]:
    defaults = {"device": "simulated", "threads": 1, "flash_attn": "off"}
    sizes = {"ctx": PLAIN.n_ctx, "batch": PLAIN.n_batch, "ubatch": PLAIN.n_ubatch}
    return closing(ModelPair(EngineConfig(target=target, **{**defaults, **sizes, **options}), None))


class Lent(decoder.Context):
    """The context of a pair, for a script."""

    def __init__(self, pair: ModelPair) -> None:
        self.pointer, self._settings = pair.target_context.pointer, PLAIN
        vocab = decoder.ll.llama_model_get_vocab(pair.target.pointer)
        self.n_vocab = self._width = decoder.ll.llama_vocab_n_tokens(vocab)
        self._read = decoder.ll.llama_get_logits_ith
        self._batch = decoder.ll.llama_batch_init(PLAIN.n_batch, 0, 1)


def logits(pair: ModelPair) -> dict[str, Logits]:
    """Return the logits with half of the experts that are on the device resident."""
    if pair.experts is not None:
        experts = pair.experts
        shape = (experts.n_layer, experts.n_expert)
        order = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        experts.attach_slots(sum(layer.n_expert for layer in experts.layers) // 2)
        experts.submit(order, np.zeros(shape[0], np.int32))
        assert experts.settle(30.0)
    context = Lent(pair)
    try:
        return SCRIPTS[SCRIPT](context, lambda: None)
    finally:
        decoder.ll.llama_batch_free(context._batch)


@pytest.fixture(scope="module")
def ours(models, adapter):
    found = {}
    for name, setting in SETTINGS.items():
        with opened(models[setting.family], **settings_of(setting.ours, adapter)) as pair:
            found[name] = logits(pair)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_it_computes_what_llama_cpp_computes(name, ours, reference):
    difference = first_difference(name, "ours", ours[name], reference.logits[name, "reference"])
    assert difference is None, str(difference)
    if SETTINGS[name].changes:
        without = "YaRN" if name.startswith("YaRN ") else "nothing"
        assert first_difference(name, "ours", ours[name], ours[without]) is not None


def test_every_setting_is_compared():
    compared = {name for setting in SETTINGS.values() for name in setting.ours}
    drafts = {name for name in CONTEXT if name.endswith("_draft")}
    assert compared | drafts | ELSEWHERE == CONTEXT
    assert {each.field for each in SPELLINGS} - {"samplers"} <= compared


# Placement


CELLS = 4096 * 3 * 2 * 2 * 32
"""Numbers of a cache: tokens, layers, K and V, heads, and a head's size."""


PLAIN_KV = {"flash_attn": "off"}


@pytest.mark.parametrize(
    ("family", "more", "less", "n_bytes"),
    [("qwen3moe", {}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, CELLS * (2 - 34 / 32)),
     ("qwen3moe", {}, {"cache_type_k": "q4_0", "cache_type_v": "q4_0"}, CELLS * (2 - 18 / 32)),
     ("qwen3moe", PLAIN_KV, {**PLAIN_KV, "kv_offload": False}, CELLS * 2),
     ("gpt-oss", {"swa_full": True}, {}, 1)],
)  # fmt: skip
def test_smaller_caches_take_less_of_the_device(models, family, more, less, n_bytes):
    used = []
    for options in (more, less):
        with opened(models[family], **{"flash_attn": "on", "ctx": 4096, **options}):
            used.append(memory().used)
    assert used[0] - used[1] >= 0.9 * n_bytes


@pytest.mark.parametrize(("given", "on_device"), [("all", 3), ("auto", 3), (99, 3), (3, 2), ("2", 1), (1, 0)])
def test_layers_on_the_device_are_those_that_are_split(models, given, on_device):
    with opened(models["qwen3moe"], gpu_layers=given) as pair:
        assert (pair.experts.n_layer if pair.experts is not None else 0) == on_device
        assert pair.placement.layers_on_device == on_device
        said = [note for note in pair.notes if "--gpu-layers" in note]
        assert len(said) == (on_device < 3)
        if said:
            assert (f"the last {on_device} of 3 layers" if on_device else "no layer") in said[0]


def test_as_many_layers_as_fit(models):
    """The value "auto" puts as many layers on the device as fit. Larger values are refused."""
    needed = {}
    for n in range(5):
        with opened(models["qwen3moe"], gpu_layers=n) as pair:
            needed[n] = memory().used
    assert needed[0] < needed[1] < needed[2] < needed[3] < needed[4]
    for n in range(1, 5):
        limit = {"vram_limit": needed[n]}
        with opened(models["qwen3moe"], gpu_layers="auto", **limit) as pair:
            assert pair.placement.layers_on_device == n - 1
            assert memory().used == needed[n]
            said = [note for note in pair.notes if "--gpu-layers" in note]
            assert said == ([] if n == 4 else said[:1])
            assert n == 4 or f"--gpu-layers {n}: " in said[0]
        if n < 4:
            for given in ("all", n + 1):
                with pytest.raises(OutOfMemoryError), opened(models["qwen3moe"], gpu_layers=given, **limit):
                    pass
    assert memory().used == 0


def test_the_draft_s_are_the_draft_s(models, tiny_model):
    draft = {"draft": tiny_model("qwen3"), "flash_attn": "on", "ctx": 4096}
    used = {}
    for name, options in {
        "f16": {},
        "target": {"cache_type_k": "q4_0"},
        "draft": {"cache_type_k_draft": "q4_0"},
        "draft's V": {"cache_type_k_draft": "q4_0", "cache_type_v_draft": "q4_0"},
        "no layer": {"gpu_layers_draft": 0},
    }.items():
        with opened(models["qwen3moe"], **draft, **options):
            used[name] = memory().used
    half = pytest.approx(4096 * 3 * 2 * 32 * (2 - 18 / 32), rel=0.05)
    assert used["f16"] - used["target"] == half
    assert used["f16"] - used["draft"] == half
    assert used["draft"] - used["draft's V"] == half
    assert used["no layer"] < used["draft's V"]


# Settings that are refused


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"cache_type_k": "q8"}, "cache_type_k: 'q8' is not one of f32, f16"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
        ({"gpu_layers": "some"}, "a number of layers, all or auto"),
        ({"rope_scaling": "ntk"}, "none, linear, yarn"),
        ({"rope_freq_scale": float("nan")}, "rope_freq_scale"),
        ({"threads_batch": 513}, "0 to 512"),
        ({"override_kv": {"": 1}}, "a key has 1 to 127 bytes"),
        ({"override_kv": {"a": "x" * 128}}, "more than 127 bytes"),
        ({"override_kv": {"a": 2**63}}, "64 bits"),
        ({"lora": [3]}, "neither a file nor a pair"),
        ({"gpu_layers": 1.5}, "a number of layers, all or auto"),
        ({"override_kv": {"a": None}}, "int, float, bool, str"),
        ({"lora": [("a.gguf", "much")]}, "the scale of a.gguf must be a number"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options, fault):
    with pytest.raises(InputError, match=fault):
        EngineConfig(target="x.gguf", **options)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"cache_type_k": "q8_0", "flash_attn": "on"}, "does not divide n_embd_head_k=48"),
        ({"override_kv": {"qwen3moe.attention.head_count": 0}}, "wrong shape"),
        ({"override_kv": {"qwen3moe.block_count": 100_000}}, "override_kv, block_count is 100000"),
        ({"override_kv": {"qwen3moe.expert_used_count": 9}}, "override_kv, expert_used_count is 9"),
        ({"lora": "nowhere.gguf"}, "nowhere.gguf: the LoRA adapter cannot be read: No such file"),
        ({"lora": "MODEL"}, "this is a model, not a LoRA adapter"),
        ({"lora": "OTHER"}, "does not fit .*base model"),
        ({"lora": "SHORT"}, "cut off|damaged|truncated"),
    ],
)
def test_what_llama_cpp_refuses_is_one_line(tiny_model, tmp_path, options, fault):
    target = tiny_model("qwen3moe", head_dim=48)
    if "lora" in options:
        other = write_adapter(tmp_path / "other.gguf", tiny_model("qwen3moe", n_embd=96))
        short = tmp_path / "short.gguf"
        short.write_bytes(other.read_bytes()[:-64])
        files = {"MODEL": target, "OTHER": other, "SHORT": short}
        options = {"lora": files.get(options["lora"], options["lora"])}
    with pytest.raises(InputError, match=fault) as refused, opened(target, **options):
        pass
    assert "\n" not in str(refused.value)


def test_a_k_type_that_does_not_fit_without_flash_attention(tiny_model):
    """llama.cpp checks the type only with flash attention. Without it, an assertion fails."""
    target = tiny_model("qwen3moe", head_dim=40, n_head_kv=1)
    with (
        pytest.raises(InputError, match=r"blocks of a K cache of type q8_0: give another type$"),
        opened(target, cache_type_k="q8_0"),
    ):
        pass
