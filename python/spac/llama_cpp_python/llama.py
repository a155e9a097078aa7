"""llama-cpp-python's `Llama` with split experts, and with speculation in llama.cpp's loop.

Example:
    from spac import Llama

    llm = Llama("model.gguf", draft="draft.gguf", n_ctx=4096)
    print(llm("def fibonacci(n):", max_tokens=100)["choices"][0]["text"])
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama import LogitsProcessorList
from llama_cpp.llama_tokenizer import LlamaTokenizer

from spac import _core
from spac.errors import InputError
from spac.llama_cpp_python.call_lock import Stream
from spac.llama_cpp_python.completion import GenerationAsked, parts
from spac.llama_cpp_python.context import ContextLlama
from spac.llama_cpp_python.detokenizer import Detokenizer
from spac.llama_cpp_python.generation import LoopRun, TokenRun, Tokens
from spac.llama_cpp_python.loaded import CHOICE, COMMON, GENERATE, log
from spac.llama_cpp_python.logprobs import Logprobs, n_alternatives, with_logprobs
from spac.llama_cpp_python.names import OPTIONS
from spac.llama_cpp_python.sampling import ChatGrammar, LogitBias, Sampling, check_grammar
from spac.llama_cpp_python.several import Record, refuse_alone
from spac.model.images import NO_PROJECTOR

__all__ = ["COMMON", "OPTIONS", "Llama"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _like(method: Callable[_P, Any]) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Return a decorator that gives a method the parameters and the documentation of llama_cpp's `method`."""
    return functools.wraps(method)


def _answers(method: Callable[_P, Any]) -> Callable[_P, Any]:
    """Return a method whose result is a dict, or an iterator with `stream`: Any, so that both can be used."""
    return method


class Llama(ContextLlama):
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

    def _alone(self, made: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
        """Return the generator `made`, which works while no other thread uses the model."""
        return made if self._threads is not None else Stream(self._calls, made)

    @_like(llama_cpp.Llama.generate)
    def generate(self, *args: Any, **keywords: Any) -> Tokens:
        """Yield tokens as llama_cpp's `generate` does, from llama.cpp's loop where it can."""
        given = GENERATE.bind(self, *args, **keywords).arguments
        if self.captures:
            raise GenerationAsked(given)
        return self._alone(self._tokens(given))

    def _tokens(self, given: dict[str, Any]) -> Tokens:
        """Yield the tokens of `generate`, whose arguments these are."""
        sampling = Sampling(**{name: given.get(name, default) for name, default in CHOICE.items()})
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
        self._n_generations += 1
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
        n_generations, n_unseen, limit = self._n_generations, len(sequence), self._expected
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
                    ours = not alone or (n_generations == self._n_generations and self.n_tokens == n_noted)
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
            self._n_generations = n_generations = self._n_generations + 1

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
