"""Contexts and sessions on tiny models, closed in the right order when a test ends."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from spac import _core
from spac.errors import Cancelled
from spac.machine.arrays import Float32Array, Int32Array
from spac.model import c_api

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

Tokens = Int32Array
GREEDY: dict[str, Any] = {"temp": 0.0}


@api.llama_log_callback
def _silent(_level: int, _text: bytes, _data: object) -> None:
    """Drop the library's log lines. They would disturb a test's output."""


class Lab:
    """The owner of models, contexts and sessions. It frees them last to first."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._models: dict[Path, int] = {}
        self.handles: dict[Path, _core.Experts | None] = {}
        # Other tests in this process need the library's log afterwards. It tells why something failed.
        self._closing.callback(c_api.listen)
        api.llama_log_set(_silent, ctypes.c_void_p(0))
        api.llama_backend_init()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def model(self, path: Path) -> int:
        """Return the llama_model of this file, loaded once. Its experts are on the CPU until it has slots."""
        if path not in self._models:
            params = api.llama_model_default_params()
            params.load_mtp = True
            with _core.LoadScope() as scope:
                model = api.llama_model_load_from_file(str(path).encode(), params)
                self.handles[path] = scope.experts
            assert model, f"{path} did not load"
            self._closing.callback(api.llama_model_free, model)
            self._models[path] = model
        return self._models[path]

    def context(self, path: Path, **params: Any) -> int:
        """Return a new llama_context of this file's model, with small defaults."""
        model = self.model(path)
        values = {"n_ctx": 256, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1, "no_perf": True} | params
        settings = api.llama_context_default_params()
        for name, value in values.items():
            setattr(settings, name, value)
        context = api.llama_init_from_model(model, settings)
        assert context, f"no context for {path}"
        self._closing.callback(api.llama_free, context)
        return context

    def experts(self, path: Path) -> _core.Experts | None:
        """Return the handle on the experts of a model that is loaded."""
        return self.handles[path]

    def session(
        self, target: int, draft: int | None = None, experts: _core.Experts | None = None, **params: Any
    ) -> _core.Session:
        """Return a session that closes before its contexts. A draft context means "draft-simple"."""
        if draft is not None:
            params.setdefault("draft_types", ["draft-simple"])
        session = _core.Session(target, draft, experts, **params)
        self._closing.callback(session.close)
        return session

    def plain(self, path: Path, **params: Any) -> _core.Session:
        """Return a session without speculation, on its own context."""
        return self.session(self.context(path), **params)


def prompt(n: int, seed: int = 0) -> Tokens:
    """Return `n` random ordinary tokens of the tests' tokenizer."""
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


def take(session: _core.Session, n: int) -> list[int]:
    """Return `n` more tokens, or fewer if the context is full. They go on after end-of-generation tokens."""
    tokens: list[int] = []
    while len(tokens) < n:
        step = session.step()
        tokens += step.tokens.tolist()
        if step.reason == "length":
            break
    return tokens[:n]


def generate(session: _core.Session, tokens: Tokens, n: int) -> list[int]:
    """Return `n` tokens that follow a new prompt."""
    session.prefill(tokens)
    return take(session, n)


@contextmanager
def disturbed(session: _core.Session) -> Iterator[None]:
    """Call cancel() again and again in another thread, at growing intervals, so that work ends on a slow
    machine too. The first call comes before anything runs."""
    done = threading.Event()
    session.cancel()

    def disturb() -> None:
        delay_s = 0.0005
        while not done.wait(delay_s):
            session.cancel()
            delay_s *= 1.1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def persist(session: _core.Session, tokens: Tokens, n: int) -> tuple[list[int], int]:
    """Return `n` tokens that follow a new prompt, in spite of cancelled calls, and the number of these."""
    made: list[int] = []
    n_cancelled = 0
    prefilled = False
    while len(made) < n:
        try:
            if not prefilled:
                session.prefill(tokens)
                prefilled = True
            made += session.step().tokens.tolist()
        except Cancelled:
            n_cancelled += 1
    return made[:n], n_cancelled


def logits_after(lab: Lab, path: Path, tokens: Tokens, **params: Any) -> Float32Array:
    """Return the model's logits for the token after `tokens`, by llama.cpp's C interface alone:
    float32[n_vocab]. `params` are the context's."""
    context = lab.context(path, **params)
    data = (ctypes.c_int32 * len(tokens))(*tokens.tolist())  # the batch points into it
    batch = api.llama_batch_get_one(data, len(tokens))
    assert api.llama_decode(context, batch) == 0
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(lab.model(path)))
    return np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
