"""llama-cpp-python's `Llama` with split experts, and with speculation in llama.cpp's loop.

Example:
    from spac import Llama

    llm = Llama("model.gguf", draft="draft.gguf", n_ctx=4096)
    print(llm("def fibonacci(n):", max_tokens=100)["choices"][0]["text"])
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp._logger import llama_log_callback
from llama_cpp.llama import LlamaState, LogitsProcessorList
from llama_cpp.llama_tokenizer import LlamaTokenizer

from spac import _core
from spac.chat.options import DEFAULTS
from spac.config import EngineConfig, SamplingConfig
from spac.config.engine import DEFAULT_CONTEXT
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from spac.llama_cpp_python.arguments import Arguments, LlamaCppArguments, signature
from spac.llama_cpp_python.call_lock import CallLock, Stream
from spac.llama_cpp_python.chat_handler import ChatHandler
from spac.llama_cpp_python.completion import GenerationAsked, parts
from spac.llama_cpp_python.detokenizer import Detokenizer
from spac.llama_cpp_python.generation import LoopRun, TokenRun, Tokens, plain_setting
from spac.llama_cpp_python.keywords import check_names, engine_config, llama_keywords
from spac.llama_cpp_python.lent import Fields, LentContext, LentModel, adapt, apply, with_pool
from spac.llama_cpp_python.logprobs import Logprobs, n_alternatives, with_logprobs
from spac.llama_cpp_python.names import OPTIONS
from spac.llama_cpp_python.sampling import ChatGrammar, LogitBias, Sampling, check_grammar
from spac.llama_cpp_python.several import PerThread, Record, refuse_alone
from spac.machine.terminal import wrapped
from spac.model import c_api
from spac.model.gguf.check import ModelInfo, check_model
from spac.model.images import NO_PROJECTOR
from spac.model.pair import Loader, LoadRequest, ModelPair
from spac.model.thread_pool import SharedPool
from spac.scheduler import Event
from spac.stats import Meter, RunStats, Setting

__all__ = ["OPTIONS", "Llama"]

log = logging.getLogger("spac.embedding")
log.addHandler(logging.NullHandler())

_GENERATE = inspect.signature(llama_cpp.Llama.generate)
COMMON = "common"
"""The name of the chat format that llama.cpp's `common` implements: the format of the model's family."""
_EXACT = "_config"  # `Llama.from_config` passes its own argument by this name.
_CHOICE = {item.name: _GENERATE.parameters[item.name].default for item in fields(Sampling)}
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _like(method: Callable[_P, Any]) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Return a decorator that gives a method the parameters and the documentation of llama_cpp's `method`."""
    return functools.wraps(method)


def _answers(method: Callable[_P, Any]) -> Callable[_P, Any]:
    """Return a method whose result is a dict, or an iterator with `stream`: Any, so that both can be used."""
    return method


class Llama(llama_cpp.Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` whose experts run on the device and on the CPU at the same time.

    Keyword arguments are those of `llama_cpp.Llama`, and the names of `spac.config.EngineConfig`: `draft`
    (path of a draft model), `draft_type`, `draft_length`, `slots`, `scheduler`, `device` and so on. All dense
    parts are on the device. With `n_gpu_layers` above 0, the dense parts of so many layers are. None means an
    argument's default. Several threads may call a model: one call or stream runs at a time, and the others
    wait for its end. With `parallel`, so many threads may generate at the same time; further ones wait.
    Unknown arguments are refused. A model that has neither experts nor a draft runs on
    plain llama.cpp.

    With `chat_format="common"`, chats follow the format of the model's family, by llama.cpp's own templates
    and parsers. The answers then have `reasoning_content` and `tool_calls`.

    The context can return the logits of every token of a batch, as llama_cpp's can, because apps may ask for
    them. Apps that do not ask get more slots with `context_params={"n_outputs_max": draft_length + 1}`.

    llama.cpp's loop does not support `logits_all`, a `draft_model` and a `logits_processor`. Calls with these
    run on llama_cpp's own loop, on the same split context but without speculation. So do calls behind what
    others evaluated on `ctx`.

    Either llama.cpp's loop has the context, or llama_cpp's functions (`eval`, `sample`, `ctx` and so on) have
    it. When one takes it from the other, the tokens of `input_ids` are evaluated again.

    The constructor raises InputError (a ValueError), OutOfMemoryError (a MemoryError) or SpacError, each with
    one line.
    """

    if TYPE_CHECKING:
        __call__ = _answers(llama_cpp.Llama.__call__)
        create_completion = _answers(llama_cpp.Llama.create_completion)

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
    _turn = 0  # The number of generations. An interrupted one sees it change, and the context with it.
    _owned_since: int | None = None
    """`Events.n_text` when llama_cpp's functions took the context. None if llama.cpp's loop has it."""
    _n_described = 0
    """The number of the context's tokens that `input_ids` has, if llama_cpp's functions have the context."""

    def __init__(self, model_path: str, **given: Unpack[Arguments]) -> None:
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._own = own = {name: options.pop(name) for name in (*OPTIONS, _EXACT) if name in options}
        self._said: set[str] = set()
        self._calls = CallLock()
        check_names(options)
        if options.get("vocab_only"):
            super().__init__(model_path, **options)
            return
        if own.get("lora") and options.get("lora_path"):
            raise InputError("lora and lora_path both name adapters: give all of them as lora")
        config = own.get(_EXACT) or engine_config(model_path, own, options)
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
        keywords: dict[str, Any] = {**llama_keywords(config), **options, _EXACT: config}
        return cls(str(config.target), **keywords)

    def _load(self, config: EngineConfig, options: dict[str, Any], info: ModelInfo) -> None:
        exact = _EXACT in self._own
        splits = info.is_moe and config.device.lower() != "cpu"
        alone = not (config.draft_types or splits or config.mmproj is not None or config.n_parallel > 1)
        if alone and not exact and not config.rpc:
            self._fields = Fields(dict(config.model_params), dict(config.context_params), for_loop=False)
            self._load_target(config, options, config.threads, config.threads_batch or config.threads)
            self._pool = with_pool(self._ctx.ctx)
            adapt(config, self.target, LentContext(self._ctx.ctx))
            return

        lora_path, lora_scale = options.pop("lora_path", None), options.pop("lora_scale", 1.0)
        if lora_path is not None:  # The loop applies the adapters that it knows.
            config = replace(config, lora=((lora_path, lora_scale),))

        def load(request: LoadRequest) -> tuple[c_api.Model, c_api.Context]:
            self._fields = Fields.of(request)
            if "devices" in self._fields.model and options.get("n_gpu_layers", 0) <= 0:
                options["n_gpu_layers"] = -1
            self._load_target(config, options, request.placement.threads, request.placement.prompt_threads)
            return LentModel(info.path, self.model), LentContext(self._ctx.ctx)

        # Apps may decode on the context with logits for every token. llama.cpp would end the process if the
        # context had fewer rows. A caller of `from_config` leaves the number of rows to spac.
        wants_all = any(options.get(name) for name in ("logits_all", "embedding", "draft_model"))
        loader = Loader(info, load, self.close, configured=exact, all_rows=wants_all or not exact)
        pair = ModelPair(config, None, loader=loader)
        self.lora_path, self.lora_scale = lora_path, lora_scale
        self._pool = pair.pool
        self._stack.callback(pair.close)
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
        return LentModel(Path(self.model_path), self.model)

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
            return RunStats.of(self._setting(_CHOICE["temp"]), Meter())
        stats: RunStats = self._run.stats
        return stats

    # Generation

    def _alone(self, made: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
        """Return the generator `made`, which works while no other thread uses the model."""
        return made if self._threads is not None else Stream(self._calls, made)

    @_like(llama_cpp.Llama.generate)
    def generate(self, *args: Any, **keywords: Any) -> Tokens:
        """Yield tokens as llama_cpp's `generate` does, from llama.cpp's loop where it can."""
        given = _GENERATE.bind(self, *args, **keywords).arguments
        if self.captures:
            raise GenerationAsked(given)
        return self._alone(self._tokens(given))

    def _tokens(self, given: dict[str, Any]) -> Tokens:
        """Yield the tokens of `generate`, whose arguments these are."""
        sampling = Sampling(**{name: given.get(name, default) for name, default in _CHOICE.items()})
        self._check_open()
        sequence, resets = list(given["tokens"]), given.get("reset", True)
        has_images = min(sequence, default=0) < 0
        refusal = self._refusal(sampling)
        if self._threads is not None:
            if refusal is not None:
                refuse_alone(refusal)
            if not resets:
                raise InputError(
                    "reset=False continues what the context holds, which several generations share"
                )
        elif refusal is None and self._continues_unknown(sequence, resets):
            refusal = "what others evaluated on the context"
        if has_images and refusal is not None:
            raise InputError(f"images: not with {refusal or 'plain llama.cpp'}")
        self._turn += 1
        if refusal is not None:
            yield from self._own_loop(given, sampling, refusal)
            return
        if not resets:
            if min(self._input_ids, default=0) < 0:
                raise InputError("images: reset=False cannot continue a prompt with images")
            sequence = self._input_ids.tolist() + sequence
        images = self._images if has_images else None
        yield from self._generate(sequence, sampling, given.get("stopping_criteria"), images)

    def _own_loop(self, given: dict[str, Any], sampling: Sampling, refusal: str) -> Tokens:
        """Yield the tokens of `generate` from llama_cpp's own loop."""
        self._say(refusal)
        if resets := given.get("reset", True):
            self._drop_overflow()
        self._use_context(keeps=not resets)
        experts = self._engine.experts if self._engine is not None else None
        n_prompt = len(given["tokens"])
        self._run = run = LoopRun(
            self._setting(sampling.temp), experts, n_prompt, self.target.is_end, sampling.logprobs
        )
        if isinstance(sampling.grammar, ChatGrammar):
            given["grammar"] = sampling.grammar.instead
        check_grammar(self.model, given.get("grammar"))
        plain = {name: value for name, value in given.items() if name != "self"}
        # Another generation may take the context between two tokens.
        yield from run.measure(super().generate(**plain), self._use_context)

    @property
    def _scores(self) -> npt.NDArray[np.single]:
        """The scores that llama_cpp shows to stopping criteria; with `parallel`, a row that says nothing.

        There is a row also where the context has been emptied, because its memory could not go back.
        """
        n_rows = 1 if self._threads is not None else max(1, self.n_tokens)
        scores: npt.NDArray[np.single] = self.scores[:n_rows, :]
        return scores

    def _continues_unknown(self, tokens: Sequence[int], resets: bool) -> bool:
        """Return True if tokens continue what others evaluated on the context, as chat handlers do images."""
        if not self._owns_context or self.n_tokens <= self._n_described:
            return False
        return not resets or self.longest_token_prefix(self._input_ids, tokens) > self._n_described

    def _refusal(self, sampling: Sampling) -> str | None:
        """Return why llama_cpp's own loop has to generate ("" without an engine), or None if it need not."""
        if self._engine is None:
            return ""
        if self.draft_model is not None:
            return "a draft_model in Python"
        if self._logits_all:
            return "logits_all"
        return sampling.refusal or None

    def _say(self, refusal: str) -> None:
        if refusal and refusal not in self._said:
            self._said.add(refusal)
            speculates = self._engine is not None and self._engine.config.draft_types
            level = logging.WARNING if speculates else logging.INFO
            log.log(level, "%s: such calls run on llama_cpp's own loop, without speculation", refusal)

    def _generate(
        self,
        sequence: list[int],
        sampling: Sampling,
        stopping_criteria: Any,
        images: _core.ImagePrompt | None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Generate in llama.cpp's loop.

        At every token, `input_ids` and `n_tokens` say what llama_cpp would have evaluated by then. When the
        reader changes the context or sends tokens, generation continues from there. With several generations
        at once, each has its own record of this.
        """
        assert self._engine is not None
        engine, alone = self._engine, self._threads is None
        record: Any = self if alone else Record(max(engine.context, len(sequence)) + 1)
        turn, n_unseen, limit = self._turn, len(sequence), self._expected
        setting = self._setting(sampling.temp)
        while True:
            if alone:
                self._give_context()
            # Another generation may have come in between and set its own seed.
            native = sampling.native(seed=self._seed, last_n=self.last_n_tokens_size)
            self._run = run = TokenRun(
                engine, native, setting, np.array(sequence, np.intc), n_unseen,
                limit=limit, logprobs=sampling.logprobs, images=images,
            )  # fmt: skip
            token, sent, n_noted = -1, None, 0
            try:
                for token in run.each():
                    record.input_ids[n_noted : len(sequence)] = sequence[n_noted:]
                    record.n_tokens = n_noted = len(sequence)
                    held = record.input_ids[:n_noted]
                    if stopping_criteria and stopping_criteria(held, self._scores[0, :]):
                        return
                    sent = yield token
                    ours = not alone or (turn == self._turn and self.n_tokens == n_noted)
                    if not ours:
                        sequence = self._input_ids.tolist()
                    sequence += [token, *(sent or ())]
                    if sent or not ours:
                        break
                else:
                    if not engine.target.is_end(token) or n_noted >= engine.context - 1:
                        return  # Otherwise, the loop has ended at an end token, and the reader goes on.
            finally:
                run.leave()
            if images is not None:
                raise InputError("images: an answer continues its own tokens alone")
            self._turn = turn = self._turn + 1

    def _setting(self, temp: float) -> Setting:
        """Return the setting that runs at this temperature, for the statistics."""
        temp = max(float(temp), 0.0)
        if self._engine is not None:
            return replace(self._engine.setting(SamplingConfig()), seed=self._seed, temp=temp)
        device = _core.default_device() if self.model_params.n_gpu_layers else "cpu"
        return plain_setting(self.model_path, device, self.n_threads, self.n_ctx(), self._seed, temp)

    # The context has one user at a time: llama.cpp's loop, or llama_cpp's functions.

    @property
    def ctx(self) -> Any:
        """The llama_context, which holds the tokens of `input_ids`."""
        if self._engine is not None and self._threads is None and self._ctx.ctx is not None:
            with self._calls.call():
                self._use_context()
        return self._ctx.ctx

    @property
    def _owns_context(self) -> bool:
        """True if llama_cpp's functions have the context."""
        # Others may have begun a text with the engine.
        return self._engine is None or self._owned_since == self._engine.events.n_text

    def _use_context(self, *, keeps: bool = True) -> None:
        """Take the context for llama_cpp's functions, and evaluate what `input_ids` says.

        Without `keeps`, the context is empty afterwards if the loop had it.
        """
        if self._owns_context:
            return
        assert self._engine is not None
        self._turn += 1  # A generation that is under way continues what this leaves in the context.
        self._leave_run()
        self._engine.forget()
        self._clear()
        llama_cpp.llama_set_embeddings(self._ctx.ctx, self.context_params.embeddings)  # The loop changes it.
        self._owned_since, self._overflowed = self._engine.events.n_text, False
        held = self._input_ids.tolist() if keeps else []
        self.n_tokens = self._n_described = 0
        if held and min(held) >= 0:  # There is nothing to evaluate for tokens of images.
            self._evaluate(held)

    def _give_context(self) -> None:
        """Give the context to llama.cpp's loop."""
        self._leave_run()
        if self._owns_context:
            self._clear()
        self._owned_since, self._overflowed = None, False

    def _leave_run(self) -> None:
        """Let the last generation leave llama.cpp's loop."""
        if isinstance(self._run, TokenRun):
            self._run.leave()

    def _clear(self) -> None:
        if self._ctx.memory is not None:
            llama_cpp.llama_memory_clear(self._ctx.memory, True)

    def _take_back(self) -> None:
        """Take the context back to `n_tokens`. If its memory cannot go back, evaluate the tokens again."""
        n, memory = self.n_tokens, self._ctx.memory
        if memory is None or not 0 < n <= self._n_described:
            return
        if self._is_recurrent or self._is_hybrid:
            has_state = llama_cpp.llama_memory_seq_pos_max(memory, 0) < n
            if has_state or llama_cpp.llama_memory_seq_rm(memory, 0, n, -1):
                return
        elif window := llama_cpp.llama_model_n_swa(self.model):
            if 0 <= llama_cpp.llama_memory_seq_pos_min(memory, 0) <= max(0, n - window):
                return
        else:
            return
        self._clear()
        held = self._input_ids.tolist()
        self.n_tokens = 0
        super().eval(held)

    def create_chat_completion(self, *args: Any, **keywords: Any) -> Any:
        """Answer a chat as llama_cpp does, while no other thread uses the model."""
        if self._threads is not None:
            return super().create_chat_completion(*args, **keywords)
        with self._calls.call():
            made = super().create_chat_completion(*args, **keywords)
        return made if isinstance(made, dict) else Stream(self._calls, made)

    def _create_completion(self, **keywords: Any) -> Iterator[Any]:
        return self._alone(self._completion(**keywords))

    def _completion(
        self,
        *,
        logit_bias: Any = None,
        logits_processor: Any = None,
        logprobs: int | None = None,
        **keywords: Any,
    ) -> Generator[Any, None, None]:
        self._check_open()
        stop = keywords.get("stop") or ()
        # llama_cpp would find an empty text at once.
        keywords["stop"] = [each for each in ([stop] if isinstance(stop, str) else stop) if each]
        recorded = None
        if logprobs is not None and not self._logits_all:
            recorded, logprobs = Logprobs(n_alternatives(logprobs, keywords)), None
            logits_processor = LogitsProcessorList([recorded, *(logits_processor or ())])
        if logit_bias and (self._engine is not None or logits_processor):
            logits_processor = LogitsProcessorList([*(logits_processor or ()), LogitBias(logit_bias)])
            logit_bias = None
        made = super()._create_completion(
            logit_bias=logit_bias, logits_processor=logits_processor, logprobs=logprobs, **keywords
        )
        if recorded is not None:
            made = with_logprobs(self, made, recorded, keywords)
        elif logprobs is None and self._has_own_loop(keywords):
            made = parts(self, made, keywords)
        yield from self._expecting(made, keywords.get("max_tokens"))

    def _has_own_loop(self, asked: Mapping[str, Any]) -> bool:
        """Return True if `completion.parts` makes the parts of a completion as llama_cpp's loop would."""
        text_alone = asked.get("stream") or not (asked.get("echo") or asked.get("suffix"))
        ours = all(
            getattr(type(self), name) is getattr(Llama, name) and name not in self.__dict__
            for name in ("generate", "detokenize")
        )
        return bool(text_alone and ours and not self.verbose and self.cache is None and self._is_text_ours)

    @property
    def _is_text_ours(self) -> bool:
        return type(self.tokenizer_) is LlamaTokenizer

    def _expecting(self, made: Generator[Any, None, None], n_tokens: int | None) -> Iterator[Any]:
        """Yield the parts of a completion of `n_tokens` tokens at most; None or 0 for no limit."""
        with contextlib.closing(made):
            self._expected = n_tokens if n_tokens is not None and n_tokens > 0 else None
            try:
                first = next(made, None)  # The generation begins.
            finally:
                self._expected = None
            if first is not None:
                yield first
                yield from made

    # Text

    def see(self, text: bytes, images: Sequence[bytes]) -> list[int]:
        """Return the tokens of a prompt of text and images; only `generate` and its callers take them.

        The next call that generates must be given these. `Engine.image_prompt` describes the arguments and
        the errors.
        """
        self._check_open()
        if self._engine is None:
            raise InputError(NO_PROJECTOR)
        self._images = self._engine.image_prompt(text.decode("utf-8", "replace"), images)
        tokens: list[int] = self._images.tokens.tolist()
        return tokens

    def preserve_tokens(self, tokens: Collection[int]) -> None:
        """Set the control tokens that are text from now on: `ChatPrompt.preserved_tokens`, or none."""
        self._text.preserve(tokens)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of `tokens` as llama_cpp does, with the control tokens of `preserve_tokens`."""
        if special or not self._is_text_ours:
            return bytes(super().detokenize(tokens, prev_tokens=prev_tokens, special=special))
        self._check_open()
        return self._text.text(tokens)

    @property
    def _text(self) -> Detokenizer:
        if self._detokenizer is None:
            vocab = self._model.vocab
            self._detokenizer = Detokenizer(
                lambda token, special: _core.token_piece(vocab, token, special), self.token_bos()
            )
        text: Detokenizer = self._detokenizer
        return text

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate `tokens` as llama_cpp does.

        Tokens that are decoded one at a time count as demand for experts. With a `draft_model`, so do batches
        that follow other tokens in the context.
        """
        self._check_open()
        if self._threads is not None:
            refuse_alone("eval")
        with self._calls.call():
            self._turn += 1  # A generation that is under way continues what this leaves in the context.
            self._use_context()
            self._count_and_evaluate(tokens)

    def sample(self, *args: Any, **keywords: Any) -> int:
        """Sample a token as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("sample")
        with self._calls.call():
            self._use_context()
            return int(super().sample(*args, **keywords))

    def _count_and_evaluate(self, tokens: Sequence[int]) -> None:
        if isinstance(self._run, LoopRun):
            self._run.n_evaluated += len(tokens)
        experts = self._engine.experts if self._engine is not None else None
        if experts is None or not (len(tokens) == 1 or (self.draft_model is not None and self.n_tokens)):
            self._evaluate(tokens)
            return
        experts.set_counting(True)
        try:
            self._evaluate(tokens)
        finally:
            experts.set_counting(False)
            demand, _graphs = experts.take_demand()
        if self._engine is not None and self._engine.events.driver is not None:
            self._engine.events.driver.raised(Event.VERIFY_END, demand, n_verified=len(tokens))

    def _evaluate(self, tokens: Sequence[int]) -> None:
        self._take_back()
        is_described = self.n_tokens <= self._n_described
        try:
            super().eval(tokens)
        finally:
            if is_described:
                self._n_described = self.n_tokens
            self._check_servers()
        if len(tokens) and (logits := llama_cpp.llama_get_logits_ith(self._ctx.ctx, -1)):
            total = np.ctypeslib.as_array(logits, (self._n_vocab,)).sum()
            self._overflowed = self._overflowed or bool(np.isnan(total) or total == np.inf)

    def _drop_overflow(self) -> None:
        """Clear the context and its data if its numbers are not finite: masked ones spoil later results."""
        if not self._overflowed:
            return
        self._overflowed, self.n_tokens = False, 0
        self._clear()

    def reset(self) -> None:
        """Forget the tokens of the context, as llama_cpp does."""
        if self._threads is not None:
            self.n_tokens = 0
            return
        with self._calls.call():
            self._use_context(keeps=False)  # Chat handlers clear the context's memory after this.
            self._drop_overflow()
            super().reset()

    def embed(self, *args: Any, **keywords: Any) -> Any:
        """Return embeddings as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("embed")
        with self._calls.call():
            self._use_context(keeps=False)
            try:
                return super().embed(*args, **keywords)
            finally:
                self._check_servers()

    def _check_servers(self) -> None:
        """Raise DeviceError if an RPC server is lost. llama_cpp's results are void then."""
        if self._own.get("rpc") or (_EXACT in self._own and self._own[_EXACT].rpc):
            _core.synchronize(self._ctx.ctx)

    def save_state(self) -> Any:
        """Return a copy of the context's state.

        If llama.cpp's loop has the context, the state has the tokens alone. `spac.Llama` loads such a state
        and evaluates the tokens when it needs them.
        """
        self._check_open()
        if self._threads is not None:
            refuse_alone("save_state")
        with self._calls.call():
            if not self._owns_context:
                return LlamaState(
                    input_ids=self.input_ids.copy(), scores=self.scores[:0].copy(), n_tokens=self.n_tokens,
                    llama_state=b"", llama_state_size=self.input_ids.nbytes, seed=self._seed,
                )  # fmt: skip
            state = super().save_state()
            state.overflowed, state.n_described = self._overflowed, self._n_described
            return state

    def load_state(self, state: Any) -> None:
        """Restore a state of the context, as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("load_state")
        with self._calls.call():
            self._turn += 1
            if not state.llama_state:
                self._load_tokens(state)
                return
            self._use_context(keeps=False)
            self._drop_overflow()
            super().load_state(state)
            self._overflowed = getattr(state, "overflowed", False)
            self._n_described = getattr(state, "n_described", self.n_tokens)

    def _load_tokens(self, state: Any) -> None:
        """Restore a state of tokens alone."""
        self._drop_overflow()
        self.input_ids, self._seed = state.input_ids.copy(), state.seed
        self.n_tokens, self._requires_eval = state.n_tokens, True
        if self._engine is not None:
            self._give_context()
            return
        held = self._input_ids.tolist()
        self.reset()
        self._evaluate(held)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._own}
