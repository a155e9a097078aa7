"""The model that llama-cpp-python's server uses.

It stops when its client has left, counts its work in the metrics, and reports errors in words for clients.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import llama_cpp
from fastapi.responses import JSONResponse

from spac.errors import Cancelled
from spac.llama_cpp_python.chat_handler import ChatHandler
from spac.serve.choices import chunks_of, count_choices, joined, prompts_of, runs_of, timings
from spac.serve.metrics import Metrics
from spac.serve.page.live import LiveFeed
from spac.serve.refusal import GONE, Refusal, refusal_of
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext

if TYPE_CHECKING:
    from spac.llama_cpp_python.generation import TokenRun
    from spac.stats import RunStats


class ServedModel:
    """Behaves like the `Llama` inside, also for several requests at once if its engine allows that."""

    def __init__(self, llama: Any, name: str, metrics: Metrics, feed: LiveFeed | None = None) -> None:
        """Wrap `llama`; `name` is the model's name in answers; `feed` shows its work on the page."""
        self._llama, self._name, self._metrics, self._feed = llama, name, metrics, feed
        engine = getattr(llama, "engine", None)
        self._several = engine is not None and engine.batch is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Return a text completion, or its chunks; the prompts are those of the request's context."""
        prompts = prompts_of(REQUEST_CONTEXT.get().request)
        for prompt in prompts:
            if isinstance(prompt, list):
                self.check_tokens(prompt, "prompt")
                if keywords.get("echo"):
                    raise Refusal(400, "echo: not with a prompt of tokens", param="echo")
        return self._answer(self.create_completion, [{**keywords, "prompt": prompt} for prompt in prompts])

    def create_chat_completion(self, **keywords: Any) -> Any:
        """Return a chat completion, or its chunks."""
        # The method is called unbound, so that the chat format's handler asks this object for the completion.
        return self._answer(functools.partial(llama_cpp.Llama.create_chat_completion, self), [keywords])

    def _answer(self, make: Callable[..., Any], arguments: list[dict[str, Any]]) -> Any:
        """Return the answer with the choices for all arguments, or its chunks."""
        context = REQUEST_CONTEXT.get()
        n, runs = count_choices(context.request), context.runs
        each = list(runs_of(arguments, n))
        if arguments[0].get("stream"):
            options = context.request.get("stream_options")
            counts = isinstance(options, dict) and options.get("include_usage")
            return chunks_of((make(**run) for run in each), len(each), runs, n if counts else 0)
        with _refusing():
            answers = [make(**run) for run in each]
        made = answers[0] if len(answers) == 1 else joined(answers, n)
        # By its declared types, the app would drop the fields that it does not know.
        return JSONResponse({**made, "timings": timings(runs)} if runs else made)

    def detokenize(self, tokens: list[int]) -> bytes:
        """Return the text of tokens in valid UTF-8; raise Refusal for a token that does not exist."""
        self.check_tokens(tokens, "tokens")
        return bytes(self._llama.detokenize(tokens).decode("utf-8", "replace"), "utf-8")

    def check_tokens(self, tokens: list[int], where: str) -> None:
        """Raise Refusal for a token that does not exist; `where` is its field in the request."""
        n_vocab = self._llama.n_vocab()
        for token in tokens:
            if not 0 <= token < n_vocab:  # the library would end the process
                raise Refusal(400, f"{token} is no token: they are 0 to {n_vocab - 1}", param=where)

    def preserve_tokens(self, tokens: Collection[int]) -> None:
        """Set the control tokens that are text in this request's answer."""
        if not self._several:
            self._llama.preserve_tokens(tokens)
        elif (context := REQUEST_CONTEXT.get(None)) is not None:  # It is gone at the request's end.
            context.preserved = tokens

    @property
    def stats(self) -> RunStats | None:
        """The statistics of the last generation; of this request's last one, if several run at once."""
        if not self._several:
            return getattr(self._llama, "stats", None)
        run = REQUEST_CONTEXT.get().run
        return run.stats if run is not None else None

    def create_completion(self, *args: Any, stopping_criteria: Any = None, **keywords: Any) -> Any:
        """Return a completion, or its chunks; the generation stops when the request is cancelled."""
        context = REQUEST_CONTEXT.get()
        criteria = [
            *(stopping_criteria or ()),
            lambda _tokens, _logits: context.cancelled or context.concluded,
        ]
        keywords["model"] = self._name
        keywords["stopping_criteria"] = llama_cpp.StoppingCriteriaList(criteria)
        if keywords.get("stream"):
            stream = self._stream(context, args, keywords)
            if context.on_one_thread:
                return stream
            if self._several:
                stream = on_own_thread(stream)
            context.at_end(stream.close)  # a client that left would keep it until it is collected
            return stream
        made = (
            in_own_thread(self._whole, context, args, keywords)
            if self._several
            else self._whole(context, args, keywords)
        )
        if (stats := self.stats) is not None:
            made["usage"]["prompt_tokens_details"] = {"cached_tokens": stats.cached_tokens}
        return made

    def _whole(self, context: RequestContext, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        with _refusing(), self._at_work(context):
            return _cut(self._llama.create_completion(*args, **keywords), context)

    def _stream(
        self, context: RequestContext, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Generator[Any, None, None]:
        with _refusing(), self._at_work(context):
            for chunk in self._llama.create_completion(*args, **keywords):
                yield _cut(chunk, context)

    @contextlib.contextmanager
    def _at_work(self, context: RequestContext) -> Iterator[None]:
        if context.cancelled:
            raise Refusal(GONE, "cancelled")
        engine = getattr(self._llama, "engine", None)

        def stop() -> None:
            # This ends the library's current call. Between calls, the stopping criterion ends the generation.
            if engine is not None and engine.session is not None:
                engine.session.cancel()

        runs: list[TokenRun] = []

        def follow(run: TokenRun) -> None:
            context.run, run.before_step = run, context.wake
            runs.append(run)
            if self._several:
                context.running(run.cancel)

        before = getattr(self._llama, "stats", None)
        context.run, self._llama.on_run = None, follow
        if self._several:
            self._llama.preserve_tokens(context.preserved)
        else:
            context.running(stop)
        if self._feed is not None:
            self._feed.begin()
        try:
            yield
        finally:
            context.running(None)
            self._llama.on_run = None
            for run in runs:
                run.before_step = None
            if self._feed is not None:
                self._feed.end()
            stats = getattr(self._llama, "stats", None)
            if stats is not None and stats != before:
                self._metrics.observe(stats)
                context.runs.append(stats)


T = TypeVar("T")
_END: Any = object()


def in_own_thread(call: Callable[..., T], *args: Any) -> T:
    """Return what a call returns that runs on a thread of its own, in this context."""
    with ThreadPoolExecutor(1, "spac-request") as own:
        return own.submit(contextvars.copy_context().run, call, *args).result()


def on_own_thread(stream: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield what a stream yields that runs on one thread, because readers may come from different ones."""
    with ThreadPoolExecutor(1, "spac-request") as own:
        run = contextvars.copy_context().run
        try:
            while (item := own.submit(run, lambda: next(stream, _END)).result()) is not _END:
                yield item
        finally:
            own.submit(run, stream.close).result()


def _cut(made: dict[str, Any], context: RequestContext) -> dict[str, Any]:
    """Return an answer or a chunk; its reason to end is "length" if the request was concluded."""
    choice = made["choices"][0]
    if context.concluded and choice.get("finish_reason") == "stop":
        return {**made, "choices": [{**choice, "finish_reason": "length"}]}
    return made


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (Refusal, GeneratorExit):
        raise
    except Cancelled:
        raise Refusal(GONE, "cancelled") from None
    except Exception as error:
        raise refusal_of(error) from error


class ServedChat(ChatHandler):
    """Handles the chat requests of a served model; it reads fields beyond llama_cpp's from the context."""

    def __call__(self, *, llama: Any, **given: Any) -> Any:
        """Answer a chat request, as `ChatHandler` does."""
        context = REQUEST_CONTEXT.get()
        # An abandoned stream may be closed late, so the request's end resets the tokens.
        context.at_end(lambda: llama.preserve_tokens(()))
        return super().__call__(llama=llama, request=context.request, **given)


class ModelProxy:
    """Replaces llama-cpp-python's LlamaProxy by one model, which answers to any name."""

    def __init__(self, name: str, model: ServedModel) -> None:
        self.name, self._model = name, model

    def __call__(self, _model: str | None = None) -> ServedModel:
        """Return the model, whatever its name in the request."""
        return self._model

    def __iter__(self) -> Iterator[str]:
        return iter([self.name])
