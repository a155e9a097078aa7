"""A `llama_cpp.Llama` whose model and context an engine uses: its arguments, its loading and its facts."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import weakref
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self, Unpack

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp._logger import llama_log_callback

from spac import _core
from spac.chat.options import DEFAULTS
from spac.config import EngineConfig, SamplingConfig
from spac.config.engine import DEFAULT_CONTEXT
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.engine.own_drafts import with_own_drafts
from spac.errors import InputError
from spac.llama_cpp_python.arguments import Arguments, LlamaCppArguments, signature
from spac.llama_cpp_python.borrowed import BorrowedContext, BorrowedModel, Fields, adapt, apply, with_pool
from spac.llama_cpp_python.call_lock import CallLock
from spac.llama_cpp_python.chat_handler import ChatHandler
from spac.llama_cpp_python.generation import plain_setting
from spac.llama_cpp_python.keywords import check_names, engine_config, llama_keywords
from spac.llama_cpp_python.names import OPTIONS
from spac.llama_cpp_python.sampling import Sampling
from spac.llama_cpp_python.several import PerThread
from spac.machine.terminal import wrapped
from spac.model import c_api
from spac.model.gguf.check import ModelInfo, check_model
from spac.model.pair import Loader, LoadRequest, ModelPair
from spac.model.thread_pool import SharedPool
from spac.stats import Meter, RunStats, Setting

log = logging.getLogger("spac.embedding")
log.addHandler(logging.NullHandler())

GENERATE = inspect.signature(llama_cpp.Llama.generate)
"""The arguments of llama_cpp's `generate`."""
COMMON = "common"
"""The name of the chat format that llama.cpp's `common` implements: the format of the model's family."""
EXACT = "_config"
"""The name by which `Llama.from_config` passes its own argument."""
CHOICE = {item.name: GENERATE.parameters[item.name].default for item in fields(Sampling)}
"""The defaults of the sampling's arguments."""


class LoadedLlama(llama_cpp.Llama):  # type: ignore[misc]
    """Loads a model by llama_cpp's own initialization, where a placement says, and has an engine on it."""

    input_ids: npt.NDArray[np.intc]
    n_tokens: int
    _engine: Engine | None = None
    _run = PerThread()
    _seed = PerThread(llama_cpp.LLAMA_DEFAULT_SEED)
    _detokenizer = PerThread()
    captures = PerThread(False)
    """True while `generate` raises GenerationAsked in place of a generation."""
    _expected = PerThread()  # The number of tokens that the completion in progress asks for, or None.
    _threads: threading.local | None = None
    _fields: Fields | None = None
    _pool: SharedPool | None = None
    _images = PerThread()  # The last prompt with images.
    _overflowed = False  # True if llama_cpp's functions left numbers in the context that are not finite.
    _n_generations = 0  # An interrupted generation sees it change, and the context with it.
    _owned_since: int | None = None
    """`Events.n_text` when llama_cpp's functions took the context. None if llama.cpp's loop has it."""
    _n_described = 0
    """The number of the context's tokens that `input_ids` has, if llama_cpp's functions have the context."""

    def __init__(self, model_path: str, **given: Unpack[Arguments]) -> None:
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._own = own = {name: options.pop(name) for name in (*OPTIONS, EXACT) if name in options}
        self._said: set[str] = set()
        self._calls = CallLock()
        check_names(options)
        if options.get("vocab_only"):
            super().__init__(model_path, **options)
            return
        if own.get("lora") and options.get("lora_path"):
            raise InputError("lora and lora_path both name adapters: give all of them as lora")
        config = own.get(EXACT) or engine_config(model_path, own, options)
        info = check_model(model_path, overrides=config.override_kv)
        options.setdefault("n_ctx", min(DEFAULT_CONTEXT, info.n_ctx_train))  # only for `from_config`
        try:
            self._load(config, options, info)
            if self.chat_format == COMMON:
                self.chat_handler = ChatHandler(ChatFormat(self.target), DEFAULTS)
        except BaseException:
            self.close()
            raise

    __init__.__signature__ = signature(inspect.signature(llama_cpp.Llama.__init__))  # type: ignore[attr-defined]

    @classmethod
    def from_config(cls, config: EngineConfig, **options: Unpack[LlamaCppArguments]) -> Self:
        """Return a model that runs as an `Engine` of this configuration runs.

        `options` are further arguments of llama_cpp. The configuration's sampling is not used, because every
        call has its own. The context has rows of logits for the longest verification only. Code that decodes
        on it with llama_cpp's low-level functions and needs more rows gives `logits_all`.
        """
        keywords: dict[str, Any] = {**llama_keywords(config), **options, EXACT: config}
        return cls(str(config.target), **keywords)

    def _load(self, config: EngineConfig, options: dict[str, Any], info: ModelInfo) -> None:
        exact, notes = EXACT in self._own, list[str]()
        config = with_own_drafts(config, info, notes)
        splits = info.is_moe and config.device.lower() != "cpu"
        alone = not (config.draft_types or splits or config.mmproj is not None or config.n_parallel > 1)
        if alone and not exact and not config.rpc:
            self._fields = Fields(dict(config.model_params), dict(config.context_params), for_loop=False)
            self._load_target(config, options, config.threads, config.threads_batch or config.threads)
            self._pool = with_pool(self._ctx.ctx)
            adapt(config, self.target, BorrowedContext(self._ctx.ctx))
            return

        lora_path, lora_scale = options.pop("lora_path", None), options.pop("lora_scale", 1.0)
        if lora_path is not None:  # The loop applies the adapters that it knows.
            config = replace(config, lora=((lora_path, lora_scale),))

        def load(request: LoadRequest) -> tuple[c_api.Model, c_api.Context]:
            self._fields = Fields.of(request)
            if "devices" in self._fields.model and options.get("n_gpu_layers", 0) <= 0:
                options["n_gpu_layers"] = -1
            self._load_target(config, options, request.placement.threads, request.placement.prompt_threads)
            return BorrowedModel(info.path, self.model), BorrowedContext(self._ctx.ctx)

        # Apps may decode on the context with logits for every token. llama.cpp would end the process if the
        # context had fewer rows. A caller of `from_config` leaves the number of rows to spac.
        wants_all = any(options.get(name) for name in ("logits_all", "embedding", "draft_model"))
        loader = Loader(info, load, self.close, configured=exact, all_rows=wants_all or not exact)
        pair = ModelPair(config, None, loader=loader)
        self.lora_path, self.lora_scale = lora_path, lora_scale
        self._pool = pair.pool
        self._stack.callback(pair.close)
        pair.notes += notes
        self._engine = engine = Engine(config, pair=pair)
        self._stack.callback(engine.close)
        weakref.finalize(self, engine.close)  # Apps seldom call close(). This runs before the end.
        if engine.n_sequences > 1:
            self._threads, self._n_ctx = threading.local(), engine.context
        self.input_ids = np.zeros(max(self._n_ctx, len(self.input_ids)), np.intc)
        for note in self.notes:
            log.info("%s", note)
            if self.verbose:
                print(wrapped(f"spac: {note}", sys.stderr), file=sys.stderr)

    def _load_target(
        self, config: EngineConfig, options: dict[str, Any], threads: int, prompt_threads: int
    ) -> None:
        """Run llama_cpp's own initialization; an error of the library is raised with its reason.

        0 leaves a number of threads to llama_cpp.
        """
        options["n_threads"] = options.get("n_threads") or threads
        options["n_threads_batch"] = options.get("n_threads_batch") or prompt_threads
        c_api.echo_log(llama_log_callback if options.get("verbose", True) else None)
        c_api.last_error()
        try:
            with _core.AbortGuard():
                super().__init__(str(config.target), **options)
        except ValueError as error:
            if not str(error).startswith("Failed to "):
                raise
            what = "load the model" if "model" in str(error) else "make a context"
            raise c_api.refusal(f"{config.target}: llama.cpp could not {what}") from None

    def close(self) -> None:
        """Free the engine, the context and the model, then the thread pool."""
        if "_stack" in self.__dict__:  # It is missing when the file was refused at first.
            super().close()
        if self._pool is not None:
            self._pool.close()

    def _check_open(self) -> None:
        if self.model is None:
            raise InputError("the model is closed")

    # llama_cpp fills these structures in field by field. The getters set spac's fields again, to keep
    # llama_cpp's values out of them.

    @property
    def model_params(self) -> Any:
        """The llama_model_params, in which spac's fields are set."""
        params = self.__dict__["model_params"]
        apply(params, self._fields.model if self._fields is not None else {})
        return params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self.__dict__["model_params"] = params

    @property
    def context_params(self) -> Any:
        """The llama_context_params, in which spac's fields are set."""
        params = self.__dict__["context_params"]
        apply(params, self._fields.context if self._fields is not None else {})
        for_loop = self._fields is not None and self._fields.for_loop
        model = getattr(self.__dict__.get("_model"), "model", None)  # The context comes after the model.
        if model is not None and for_loop and llama_cpp.llama_model_n_swa(model) > 0:
            params.n_batch = self.n_batch = min(
                params.n_batch, params.n_ubatch
            )  # `ModelPair._open_target_context`
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["context_params"] = params

    # Engine and statistics

    @property
    def engine(self) -> Engine | None:
        """The engine, or None where plain llama.cpp runs."""
        return self._engine

    @property
    def target(self) -> c_api.Model:
        """The model, for its vocabulary and its chat template."""
        if self._engine is not None:
            return self._engine.target
        self._check_open()
        return BorrowedModel(Path(self.model_path), self.model)

    @property
    def notes(self) -> list[str]:
        """Notes for the user about how this model runs, one line each; more may come later."""
        return self._engine.notes if self._engine is not None else []

    @property
    def stats(self) -> RunStats:
        """The statistics of the last generation. Before the first one, they count nothing.

        With `parallel`, these are of the last one in this thread.
        """
        if self._run is None:
            return RunStats.of(self._setting(CHOICE["temp"]), Meter())
        stats: RunStats = self._run.stats
        return stats

    def _setting(self, temp: float) -> Setting:
        """Return the setting that runs at this temperature, for the statistics."""
        temp = max(float(temp), 0.0)
        if self._engine is not None:
            return replace(self._engine.setting(SamplingConfig()), seed=self._seed, temp=temp)
        device = _core.default_device() if self.model_params.n_gpu_layers else "cpu"
        return plain_setting(self.model_path, device, self.n_threads, self.n_ctx(), self._seed, temp)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._own}
