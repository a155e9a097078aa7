"""The options of models and contexts, with llama.cpp's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spac.config.fields import Checked, Parsed, Range, documented, option
from spac.config.overrides import check_overrides
from spac.config.values import Adapter, GpuLayers, split_mode, tensor_split
from spac.errors import InputError

CONTEXT_GROUP = "context and memory"
"""The heading of these options in the help."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""The types that llama.cpp has for a KV cache."""
WHOLE_TYPES = ("f32", "f16", "bf16")
"""The types of a KV cache that are not quantized."""
FLASH_ATTENTION = ("on", "off", "auto")
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
"""The ways to load a file into memory; auto is mmap."""
PAGING = ("auto", "on", "off")
"""The choices for leaving experts in the file until they are needed."""
ROPE_SCALINGS = ("none", "linear", "yarn")
CACHE_RAM_MOST = 8192
"""The largest default of `cache_ram` in MiB. llama.cpp's default is the same."""
POSITIONS = (
    "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_slow", "yarn_beta_fast",
)  # fmt: skip
"""The settings of positions that are llama.cpp's context parameters of the same name."""
_POSITIVE = Range(0, 10**12)  # 0 stands for the model's value, as in llama.cpp
_FACTOR = Range(0, 10**6)


def _cached(what: str, *flags: str) -> Any:
    return option("f16", what, *flags, choices=CACHE_TYPES, metavar="TYPE", group=CONTEXT_GROUP)


def _of_model(what: str, flag: str, range: Range = _POSITIVE) -> Any:
    return option(None, f"{what} (default: the model's)", flag, range=range, group=CONTEXT_GROUP)


@documented
@dataclass(frozen=True, kw_only=True)
class ContextConfig(Checked):
    """The options of `spac.config.EngineConfig` that llama.cpp's own programs have too.

    Options of a context (cache, flash attention, rope, threads) hold for the target and for the draft, unless
    the draft has its own option, whose name contains "draft". `lora` holds for the target.
    """

    cache_type_k: str = _cached(f"type of the K cache: {', '.join(CACHE_TYPES)}", "--cache-type-k", "-ctk")
    cache_type_v: str = _cached(
        "type of the V cache, one of these; a quantized one needs flash attention", "--cache-type-v", "-ctv"
    )
    cache_type_k_draft: str = _cached(
        "type of the draft's K cache", "--cache-type-k-draft", "-ctkd", "--spec-draft-type-k"
    )
    cache_type_v_draft: str = _cached(
        "type of the draft's V cache", "--cache-type-v-draft", "-ctvd", "--spec-draft-type-v"
    )
    flash_attn: str = option(
        "auto", "flash attention; auto: where the device has it", "--flash-attn", "-fa",
        choices=FLASH_ATTENTION, metavar="on|off|auto", group=CONTEXT_GROUP,
    )  # fmt: skip
    kv_offload: bool = option(
        True, "keep the KV cache in host memory, and compute attention there", "--kv-offload", "-kvo",
        off=("--no-kv-offload", "-nkvo"), group=CONTEXT_GROUP,
    )  # fmt: skip
    swa_full: bool = option(
        False, "layers that see a window of the past keep all of it in their cache, not the window alone: "
        "more memory, and a conversation that is changed further back is read again from that very place, "
        "not from the last checkpoint before it (the draft's always do)", "--swa-full", group=CONTEXT_GROUP,
    )  # fmt: skip
    gpu_layers: GpuLayers | Any = option(
        "all", "layers whose dense parts, and whose experts' slots, are on the device: a number, all, or "
        "auto for as many as fit; the others are on the CPU", "--gpu-layers",
        "-ngl", "--n-gpu-layers", metavar="N|all|auto", group=CONTEXT_GROUP, parse=GpuLayers.parse,
    )  # fmt: skip
    gpu_layers_draft: GpuLayers | Any = option(
        "all", "the same for the draft; auto is all", "--gpu-layers-draft", "-ngld", "--n-gpu-layers-draft",
        "--spec-draft-ngl", metavar="N|all|auto", group=CONTEXT_GROUP,
        parse=partial(GpuLayers.parse, name="gpu_layers_draft"),
    )  # fmt: skip
    split_mode: Parsed[str, str] = option(
        "layer", "with several devices, layer gives each of them some of the layers, with the slots of these "
        "layers; none uses the main GPU alone", "--split-mode", "-sm", metavar="none|layer",
        group=CONTEXT_GROUP, parse=split_mode,
    )  # fmt: skip
    tensor_split: Parsed[tuple[float, ...] | None, str | Sequence[float] | None] = option(
        None, "with several devices, each one's part of the layers, as in 3,1 (default: as their free "
        "memory)", "--tensor-split", "-ts", metavar="N0,N1,...", group=CONTEXT_GROUP, parse=tensor_split,
    )  # fmt: skip
    main_gpu: int = option(
        0, "index among the devices of the one that has the draft and the projector, and, with --split-mode "
        "none, the model", "--main-gpu", "-mg", range=Range(0, 15), group=CONTEXT_GROUP,
    )  # fmt: skip
    threads_batch: int = option(
        0, "CPU threads for prompts; 0 is as --threads", "--threads-batch", "-tb", range=Range(0, 512),
        group=CONTEXT_GROUP,
    )  # fmt: skip
    load_mode: str = option(
        "auto", "how files are loaded; auto is mmap; none reads them, mlock keeps them from being "
        "swapped out, dio reads past the system's cache", "--load-mode", "-lm", choices=LOAD_MODES,
        metavar="|".join(LOAD_MODES), group=CONTEXT_GROUP,
    )  # fmt: skip
    paging: str = option(
        "auto", "leave the target's experts in the file until they are needed: for models larger than "
        "memory; auto: where memory does not hold them", "--paging",
        choices=PAGING, metavar="|".join(PAGING), group=CONTEXT_GROUP,
    )  # fmt: skip
    rope_scaling: str | None = option(
        None, f"how positions are scaled: {', '.join(ROPE_SCALINGS)} (default: the model's)",
        "--rope-scaling", choices=ROPE_SCALINGS, metavar="NAME", group=CONTEXT_GROUP,
    )  # fmt: skip
    rope_freq_base: float | None = _of_model("base frequency of positions", "--rope-freq-base")
    rope_freq_scale: float | None = _of_model("factor on positions", "--rope-freq-scale", _FACTOR)
    yarn_orig_ctx: int | None = _of_model(
        "YaRN: context that was trained", "--yarn-orig-ctx", Range(0, 2**30)
    )
    yarn_ext_factor: float | None = _of_model(
        "YaRN: mix of extrapolation, 0 is interpolation alone", "--yarn-ext-factor", Range(-1, 10**6)
    )
    yarn_attn_factor: float | None = _of_model(
        "YaRN: factor on attention", "--yarn-attn-factor", Range(-1, 10**6)
    )
    yarn_beta_slow: float | None = _of_model("YaRN: high correction", "--yarn-beta-slow", Range(-1, 10**6))
    yarn_beta_fast: float | None = _of_model("YaRN: low correction", "--yarn-beta-fast", Range(-1, 10**6))
    override_kv: Mapping[str, bool | int | float | str] = option(
        dict, "read these metadata instead of the files'; TYPE is int, float, bool or str; may be given "
        "several times", "--override-kv", metavar="KEY=TYPE:VALUE[,…]", group=CONTEXT_GROUP,
    )  # fmt: skip
    lora: tuple[Adapter, ...] | Any = option(
        (), "LoRA adapter of the target; may be given several times; experts that it adapts are computed on "
        "the CPU", "--lora", metavar="FILE[,…]", group=CONTEXT_GROUP, parse=Adapter.several,
    )  # fmt: skip

    cache_ram: int | None = option(
        None, "MiB of host memory for conversations that others have pushed out of the context: who comes "
        "back to one goes on there, and it is not read again; 0: none, -1: no limit (default: half of what "
        f"is left beside the models, {CACHE_RAM_MOST} at most)",
        "--cache-ram", "-cram", range=Range(-1, 2**40), group=CONTEXT_GROUP,
    )  # fmt: skip
    ctx_checkpoints: int = option(
        32, "models that cannot rewind their state (recurrent layers; windows without --swa-full): states of "
        "a conversation that are kept to go back to", "--ctx-checkpoints", "-ctxcp", "--swa-checkpoints",
        range=Range(0, 4096), group=CONTEXT_GROUP,
    )  # fmt: skip
    checkpoint_min_step: int = option(
        8192, "tokens between two of them within a prompt, at least", "--checkpoint-min-step", "-cms",
        range=Range(1, 2**31 - 1), group=CONTEXT_GROUP,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cache_type_v", "cache_type_v_draft"):
            kind = getattr(self, name)
            if kind not in WHOLE_TYPES and self.flash_attn == "off":
                raise InputError(
                    f"{name} {kind}: a quantized V cache needs flash attention: leave out --flash-attn off"
                )
        check_overrides(self.override_kv)
