"""The pair of target and draft: loads them as their placement says, makes their contexts, and closes both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spac import _core
from spac.config import EngineConfig
from spac.config.context import WHOLE_TYPES
from spac.config.engine import LONGEST_MTP
from spac.config.values import StreamBatch
from spac.errors import InputError, SpacError
from spac.model import kernels
from spac.model.c_api import MTP, Context, Model, take_notices
from spac.model.fit_layers import load_what_fits
from spac.model.gguf.check import check_model
from spac.model.gguf.info import ModelInfo
from spac.model.images import open_projector
from spac.model.lora import apply_adapters, load_adapters
from spac.model.paging import give_back, paging_note
from spac.model.params import context_values, draft_rows, model_values, sequence_values, target_rows
from spac.model.pinning import pinning_note
from spac.model.placement import Placement
from spac.model.thread_pool import SharedPool

LoadProgress = Callable[[Path, float], bool]
"""A callback that gets the file and its loaded share, 0 to 1. It returns False to stop loading."""

Owned = TypeVar("Owned", Model, Context)


@dataclass(frozen=True)
class LoadRequest:
    """The request for a target that a loader gets."""

    placement: Placement
    model: dict[str, Any]
    """Fields of llama_model_params, and `layer_split` (see `Placement.target_fields`)."""
    context: dict[str, Any]
    """Fields of llama_context_params."""


@dataclass(frozen=True)
class Loader:
    """The owner of a target that is not the pair's own."""

    info: ModelInfo
    """The facts of the target's header."""
    load: Callable[[LoadRequest], tuple[Model, Context]]
    """Loads the target and makes its context. Raises SpacError."""
    free: Callable[[], object]
    """Frees both, if they are there, before another attempt to load."""
    configured: bool = False
    """True if the configuration sets the target up. Otherwise the request has only what places it."""
    all_rows: bool = True
    """True if the target's context has memory for the logits of every token of a batch."""


class ModelPair:
    """Owns the models and contexts of an engine. The experts of target and draft are kept apart."""

    target: Model
    target_context: Context
    experts: _core.Experts | None = None
    """The target's experts; None if there are none to split."""
    draft: Model | None = None
    """The draft model; None without a separate one."""
    draft_context: Context | None = None
    """The draft's context; None if no model drafts."""
    draft_experts: _core.Experts | None = None
    """The experts of a separate draft model; None without one, or on the CPU."""
    draft_tap: _core.Tap | None = None
    """The tap that shows the draft's states to routers, off at first; None without a separate draft model."""
    pool: SharedPool | None = None
    """The threads for graph parts on the CPU outside the split; None if there are no such parts."""
    projector: _core.Projector | None = None
    """The projector, with which the target sees images; None without one."""
    n_sequences = 1
    """The number of sequences that the contexts have places for."""

    def __init__(
        self,
        config: EngineConfig,
        progress: LoadProgress | None,
        *,
        all_rows: bool = True,
        loader: Loader | None = None,
        info: ModelInfo | None = None,
    ) -> None:
        """Load both models and make their contexts. `loader` loads the target, and the pair by default.

        `info` has the facts of the target's header, if the caller has read them.
        With `all_rows`, the target's context has memory for the logits of every token of a batch. A loop
        needs only those of its longest verification. Raises InputError, OutOfMemoryError or SpacError, with
        one line. Nothing stays loaded then.
        """
        take_notices()  # an earlier model's warnings are not this one's
        self._progress, self._loader = progress, loader
        self._all_rows = all_rows if loader is None else loader.all_rows
        self._closing = ExitStack()
        target = Path(config.target)
        if info is None:
            info = check_model(target, "target", config.override_kv) if loader is None else loader.info
        # A model without experts stays where its own loader puts it.
        self.placement = Placement(config, info, device=loader is None or info.is_moe)
        self.notes = self.placement.notes
        """Notes for the user about how the models run, one line each."""
        try:
            load_what_fits(config, info.n_layer, self._load, self._unload)
        except SpacError as error:
            cause = self.placement.explained(error)
            self.close()
            if cause is error:
                raise
            raise cause from None
        except BaseException:
            self.close()
            raise
        self._loader = None  # It usually belongs to the owner of this pair.

    def close(self) -> None:
        """Free the contexts, then the models, and close connections. Calling it again does nothing."""
        self._free()
        self.placement.close()

    def _free(self) -> None:
        """Free the contexts, then the models and the threads."""
        self.projector = None  # It is freed with its last user, before the models.
        self._closing.close()

    def _unload(self) -> None:
        """Undo an attempt to load, also one that failed."""
        self._free()
        if self._loader is not None:
            self._loader.free()
            if self.pool is not None:
                self.pool.close()

    @property
    def _config(self) -> EngineConfig:
        return self.placement.config

    def _load(self, config: EngineConfig) -> None:
        with self.placement.attempt(config):
            self._new_pool()
            self._load_target()
            self._load_draft()
            self._check_pair()
            self._open_projector()
            with self._room_for_prompts(self.experts):  # The draft may be the target's extra layers.
                self._open_draft_context()
            if self.experts is not None and not self.experts.n_layer:  # This counts the layers.
                self.experts = None
            self.placement.paged = self.placement.paged and self.experts is not None
            self._note()

    # ---- the target

    def _load_target(self) -> None:
        config, place, loader = self._config, self.placement, self._loader
        info = place.info
        placed, kept = place.target_fields()
        model = {**placed, "load_mtp": "draft-mtp" in config.draft_types and place.draft is None}
        context = self._target_fields()
        if loader is None or loader.configured:
            model = {**model_values(config, is_draft=False, on_device=place.device is not None), **model}
            context = {**context_values(config, is_draft=False), **context}
        if loader is None and place.device is None and info.is_moe and not kernels.repacks(info):
            model["use_extra_bufts"] = False
        model |= config.model_params
        with _core.LoadScope(place.paged) as scope, self._room_for_prompts(scope.experts):
            if loader is None:
                self.target = self._keep(Model(info.path, place.handles(), model, self._report(info)))
                load_adapters(self.target, config.lora)
                self._open_target_context()
            else:
                request = LoadRequest(place, model, {**context, **config.context_params})
                self.target, self.target_context = loader.load(request)
                self._closing.callback(self.target.close)
                self._closing.callback(self.target_context.close)
                if self.pool is not None:
                    self.pool.attach(self.target_context)
                load_adapters(self.target, config.lora)
                apply_adapters(self.target, self.target_context)
        del kept  # The library has read it.
        self.experts = scope.experts if place.device is not None else None

    def _target_fields(self) -> dict[str, Any]:
        """Return the fields of the target's context that the pair needs."""
        self.n_sequences = self.placement.n_sequences()
        config, n = self._config, self.n_sequences
        rows = {} if self._all_rows else target_rows(config, n)
        # A recurrent memory forgets which batch a version of its state is of. Those of short drafts are safe
        # for the loop's only sequence, which goes back within the last window, or to a checkpoint.
        own = self._loader is None and n == 1 and config.draft_types == ("draft-mtp",)
        versions = {"n_rs_seq": config.longest_draft} if own and config.longest_draft <= LONGEST_MTP else {}
        return {**rows, **versions, **sequence_values(config, n)}

    def _open_target_context(self) -> None:
        """Make the context of a target that the pair has loaded."""
        # While llama.cpp looks for the places of a batch's later graphs, it removes tokens from the window
        # that the earlier ones still see (`llama_kv_cache::prepare`), also with `--swa-full`. So a batch is
        # one graph.
        whole = {"n_batch": self._config.ubatch.least} if self.target.has_window else {}
        self.target_context = self._context(
            self.target, n_ctx=self.placement.context_size(), **self._target_fields(), **whole
        )
        apply_adapters(self.target, self.target_context)

    def _new_pool(self) -> None:
        """Make the pool for graph parts on the CPU, unless the split does all work of the CPU."""
        config, place = self._config, self.placement
        whole = place.device is not None and place.layers_on_device == place.layers_here
        whole = whole and config.cpu_expert_layers is None and config.kv_offload
        self.pool = None
        if not whole or config.gpu_layers_draft.count is not None:
            self.pool = SharedPool(cpu_alone=place.device is None)
            if self._loader is None:
                self._closing.callback(self.pool.close)  # runs after the contexts and models are freed

    @contextmanager
    def _room_for_prompts(self, experts: _core.Experts | None) -> Iterator[None]:
        """Make contexts in this scope reserve the memory for prefill streaming.

        Later, only the memory that slots leave would be there for it.
        """
        wanted, place = self._config.stream_batch, self.placement
        if wanted is None:
            wanted = StreamBatch(0 if place.device is None or place.shares_cores else None)
        tokens = wanted.tokens
        if experts is None or tokens == 0:
            yield
            return
        experts.set_stream_tokens(StreamBatch.LEAST if tokens is None else tokens)
        try:
            yield
        finally:
            experts.set_stream_tokens(0)  # off until measured costs give a batch size

    # ---- the draft, the projector

    def _load_draft(self) -> None:
        config, place, info = self._config, self.placement, self.placement.draft
        self.draft, self.draft_experts, self.draft_tap = None, None, None
        if info is None:
            return
        params = {
            **model_values(config, is_draft=True, on_device=place.device is not None),
            "load_mtp": "draft-mtp" in config.draft_types, **config.model_params,
        }  # fmt: skip
        with _core.LoadScope() as scope:
            handles = place.handles(is_draft=True)
            self.draft = self._keep(Model(info.path, handles, params, self._report(info)))
        if place.device is not None and (experts := scope.experts) is not None:
            experts.set_counting(False)
            self.draft_experts = experts

    def _check_pair(self) -> None:
        if self.target.has_encoder:
            raise InputError(f"{self.target.path}: an encoder-decoder model; only decoders can be run")
        types = self._config.draft_types
        if "draft-mtp" in types and not (self.draft or self.target).has_mtp:
            raise InputError(
                f"{(self.draft or self.target).path}: no layers for draft-mtp; choose another --draft-type"
            )
        if self.draft is None or "draft-simple" not in types:
            return
        fault = _core.vocab_mismatch(self.target.pointer, self.draft.pointer)
        if fault:
            raise InputError(
                f"the draft {self.draft.path} does not fit the target {self.target.path}: "
                f"their vocabularies differ ({fault})"
            )

    def _open_projector(self) -> None:
        if self._config.mmproj is not None:
            place = self.placement
            self.projector = open_projector(
                self._config, self.target, place.info.n_embd, place.device, place.prompt_threads
            )

    def _open_draft_context(self) -> None:
        """Make the draft's context as llama.cpp's own programs do, if a model drafts.

        A draft that uses the target's hidden states gets the target's context.
        """
        config = self._config
        self.draft_context = None
        if not any(name.startswith("draft-") for name in config.draft_types):
            return
        params: dict[str, Any] = {
            "n_ctx": self.target_context.size, **draft_rows(config, self.n_sequences),
            **sequence_values(config, self.n_sequences),
        }  # fmt: skip
        if "draft-simple" not in config.draft_types:
            params["ctx_other"] = self.target_context.pointer
        if "draft-mtp" in config.draft_types:
            params["ctx_type"] = MTP
        if self.draft is None:
            self.draft_context = self._context(self.target, **params)
            return
        with _core.Tap() as self.draft_tap:
            if self.placement.draft_on_cpu and self.placement.device is not None:
                params["cb_eval"], params["cb_eval_user_data"] = self.draft_tap.callback
            self.draft_context = self._context(self.draft, **params)

    def _context(self, model: Model, **params: Any) -> Context:
        config, place = self._config, self.placement
        common = {
            "n_batch": config.batch,
            "n_ubatch": config.ubatch.least,
            "n_threads": place.threads,
            "n_threads_batch": place.prompt_threads,
        }
        # With draft-mtp, the draft's context may belong to the target's own extra layers.
        is_draft = model is self.draft or "ctx_type" in params
        values = {**context_values(config, is_draft=is_draft), **common, **params, **config.context_params}
        try:
            context = self._keep(Context(model, values))
        except InputError as error:
            kind = config.cache_type_k_draft if is_draft else config.cache_type_k
            if "GGML_ASSERT" not in str(error) or kind in WHOLE_TYPES:
                raise
            raise InputError(
                f"{model.path}: its heads are no multiple of the blocks of a K cache of type {kind}: "
                "give another type"
            ) from None
        if self.pool is not None:
            self.pool.attach(context)
        return context

    def _keep(self, owned: Owned) -> Owned:
        self._closing.callback(owned.close)
        return owned

    def _report(self, info: ModelInfo) -> Callable[[float], bool] | None:
        """Return the callback that gets the loaded share of a model's file; None without `progress`."""
        progress = self._progress
        return None if progress is None else lambda done: progress(info.path, done)

    # ---- notes and facts

    def _note(self) -> None:
        """Add the notes about what was loaded, and give memory back that the device has taken over."""
        config, place, name = self._config, self.placement, self.placement.info.path.name
        place.note_sequences()
        if place.paged and config.paging == "auto":
            self.notes.append(paging_note(place.rest))
        if place.paged:  # The system's cache has what the device holds, and memory is short.
            give_back(place.info.path)
            if place.draft is not None:
                give_back(place.draft.path, experts_too=True)
        if self.experts is not None and place.device is not None:  # Making contexts pins the experts.
            note = pinning_note(name, self.experts, place.device)
            self.notes += [note] if note else []
        place.note_layers()
        wanted, size = config.ctx, self.target_context.size
        if wanted and wanted < size < wanted + 256:
            self.notes.append(f"--ctx {wanted}: the context holds {size} tokens, a multiple of 256")
        if self.experts is None and not place.whole and self._loader is None:
            reason = "device cpu" if place.device is None else f"{name} has no experts"
            where = f"on {place.device_names}" if place.device is not None else "on the CPU"
            if place.device is None or place.layers_on_device:
                self.notes.append(f"{reason}: runs as plain llama.cpp {where}")

    @property
    def sequence_context(self) -> int:
        """The number of tokens that one sequence may have."""
        shares = sequence_values(self._config, self.n_sequences).get("kv_unified", True)
        size = self.target_context.size
        return size if shares else size // self.n_sequences

    @property
    def target_states(self) -> tuple[int, int]:
        """The number of the target's layers that compute a token's hidden states, and their width."""
        return self.placement.info.states

    @property
    def draft_states(self) -> tuple[int, int]:
        """The number of the draft's layers that can be shown to routers, and their width."""
        if self.draft_tap is None or self.placement.draft is None:
            return 0, 0
        if self.placement.draft_on_cpu:
            return self.placement.draft.states
        return self.draft_tap.n_layer, self.draft_tap.n_embd
