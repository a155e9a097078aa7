"""The keyword arguments of `spac.Llama` with their types, for type checkers, editors and `help`.

A test compares them with llama_cpp's own signature and with the fields of `spac.config.EngineConfig`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from spac.config import EngineConfig, Slots, StreamBatch, VramLimit
from spac.config.values import Adapter, GpuLayers
from spac.scheduler import Scheduler, SchedulerChoice

if TYPE_CHECKING:
    from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
    from llama_cpp.llama_speculative import LlamaDraftModel
    from llama_cpp.llama_tokenizer import BaseLlamaTokenizer


class LlamaCppArguments(TypedDict, total=False):
    """The arguments that `llama_cpp.Llama` has too. None means an argument's default."""

    n_gpu_layers: int | None
    split_mode: int | None
    main_gpu: int | None
    tensor_split: list[float] | None
    vocab_only: bool | None
    use_mmap: bool | None
    use_mlock: bool | None
    kv_overrides: dict[str, bool | int | float | str] | None
    seed: int | None
    n_ctx: int | None
    n_batch: int | None
    n_ubatch: int | None
    n_threads: int | None
    n_threads_batch: int | None
    rope_scaling_type: int | None
    pooling_type: int | None
    attention_type: int | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_fast: float | None
    yarn_beta_slow: float | None
    yarn_orig_ctx: int | None
    logits_all: bool | None
    embedding: bool | None
    offload_kqv: bool | None
    flash_attn: bool | None
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool | None
    last_n_tokens_size: int | None
    lora_base: str | None
    lora_scale: float | None
    lora_path: str | None
    numa: bool | int | None
    chat_format: str | None
    chat_handler: LlamaChatCompletionHandler | None
    draft_model: LlamaDraftModel | None
    tokenizer: BaseLlamaTokenizer | None
    type_k: int | None
    type_v: int | None
    spm_infill: bool | None
    verbose: bool | None


class EngineArguments(TypedDict, total=False):
    """The arguments that spac adds: the fields of `EngineConfig` that llama_cpp has no name for."""

    draft: Path | str | None
    draft_type: tuple[str, ...] | str | None
    draft_length: int | None
    draft_max: int | None
    latency_budget: float | None
    deterministic: bool | None
    draft_min: int | None
    draft_p_min: float | None
    slots: Slots | str | int | float | None
    vram_limit: VramLimit | str | int | float | None
    scheduler: SchedulerChoice | Scheduler | str | None
    scheduler_options: Mapping[str, Any] | None
    keeps_split: str | None
    cpu_expert_layers: int | None
    device: str | None
    rpc: Sequence[str] | str | None
    rpc_layers: Sequence[int] | str | int | None
    slot_devices: Sequence[str] | str | None
    parallel: int | None
    stream_batch: StreamBatch | str | int | None
    lookahead: int | None
    miss: str | None
    mmproj: Path | str | None
    mmproj_offload: bool | None
    image_min_tokens: int | None
    image_max_tokens: int | None
    state: Path | str | None
    model_params: Mapping[str, Any] | None
    context_params: Mapping[str, Any] | None
    most_parallel: int | None
    cache_type_k_draft: str | None
    cache_type_v_draft: str | None
    gpu_layers_draft: GpuLayers | Any | None
    paging: str | None
    lora: tuple[Adapter, ...] | Any | None
    cache_ram: int | None
    ctx_checkpoints: int | None
    checkpoint_min_step: int | None


class Arguments(LlamaCppArguments, EngineArguments):
    """All keyword arguments of `spac.Llama`."""


def signature(own: inspect.Signature) -> inspect.Signature:
    """Return the signature of `spac.Llama.__init__`, with the defaults of llama_cpp's `own` and of spac."""
    plain = [each for each in own.parameters.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
    defaults = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(EngineConfig)
    }
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind.__forward_arg__
        )
        for name, kind in EngineArguments.__annotations__.items()
    ]
    return inspect.Signature([*plain, *added])
