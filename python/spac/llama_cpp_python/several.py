"""The parts of `spac.Llama` for several generations at once, each in a thread of its own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from spac.errors import InputError


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


class Record:
    """The tokens that llama_cpp would have evaluated for one generation of several."""

    def __init__(self, n: int) -> None:
        """Begin without tokens, with place for `n`."""
        self.input_ids, self.n_tokens = np.zeros(n, np.intc), 0


def refuse_alone(what: str) -> None:
    """Raise InputError for a call that changes the context, which several generations share."""
    raise InputError(f"{what}: not with several generations at once; leave out parallel")
