"""The parts of `spac.Llama` for several generations at once, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spac import _core
from spac.engine.loop_sequence import LoopSequence
from spac.errors import InputError
from spac.llama_cpp_python.generation import TokenRun
from spac.stats import Setting

if TYPE_CHECKING:
    from spac.llama_cpp_python.llama import Llama
    from spac.llama_cpp_python.sampling import Sampling


class PerThread:
    """An attribute that has a value for each thread, on objects whose `_threads` is a `threading.local`.

    On other objects, whose `_threads` is None, it is an ordinary attribute.
    """

    def __init__(self, default: Any = None) -> None:
        self._default = default

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type | None = None) -> Any:
        if owner is None:
            return self
        threads: threading.local | None = owner.__dict__.get("_threads")
        values = owner.__dict__ if threads is None else threads.__dict__
        # A thread begins with the value that was set before there were several.
        return values.get(self._name, owner.__dict__.get(self._name, self._default))

    def __set__(self, owner: Any, value: Any) -> None:
        threads: threading.local | None = owner.__dict__.get("_threads")
        (owner.__dict__ if threads is None else threads.__dict__)[self._name] = value


def generate_beside(
    llama: Llama, loop: _core.ServerLoop, given: dict[str, Any], sampling: Sampling, setting: Setting
) -> Generator[int, Sequence[int] | None, None]:
    """Yield the tokens of one generation among others; `given` has the arguments of `Llama.generate`.

    Raise InputError for arguments that need the context for one generation.
    """
    if not given.get("reset", True):
        raise InputError("reset=False continues what the context holds, which several generations share")
    engine, criteria = llama.engine, given.get("stopping_criteria")
    assert engine is not None
    n_top = -1 if sampling.logprobs is None else sampling.logprobs.n_top
    native = sampling.native(seed=llama._seed, last_n=llama.last_n_tokens_size)
    sequence = LoopSequence(loop, native, n_top=n_top)
    prompt = np.array(given["tokens"], np.intc)
    held = np.zeros(max(llama.n_ctx(), prompt.size) + 1, np.intc)
    held[: prompt.size] = prompt
    n_held = prompt.size
    images = llama._images if prompt.size and prompt.min() < 0 else None
    run = TokenRun(engine, sequence, setting, prompt, prompt.size, sampling.logprobs, images)
    llama._run = run
    llama._begin_run(run)
    try:
        for token in run.each():
            if criteria and criteria(held[:n_held], llama._scores[0, :]):
                return
            if (yield token):
                raise InputError("tokens that are sent to a generation need the context for it alone")
            held[n_held] = token
            n_held += 1
    finally:
        sequence.cancel()


def refuse_alone(what: str) -> None:
    """Raise InputError for a call that changes the context, which several generations share."""
    raise InputError(f"{what}: not with several generations at once; leave out parallel")
