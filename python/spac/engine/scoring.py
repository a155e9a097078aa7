"""The probabilities that the target gives to the tokens of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spac.config import SamplingConfig
from spac.engine.server_loop import parameters_of
from spac.errors import Cancelled, InputError
from spac.machine.arrays import Float32Array, Int32Array
from spac.model.c_api import TokenArray

if TYPE_CHECKING:
    from spac.engine import Engine

CHUNK = 64
"""The tokens whose logits are asked for at a time. A row of logits has the size of the vocabulary."""


class Scores(NamedTuple):
    """The natural logarithms of probabilities before any sampler, of the T tokens behind the first one."""

    chosen: Float32Array
    """The log probabilities of the tokens, float32 [T]."""
    top_ids: Int32Array
    """The most probable tokens at their places, best first, int32 [T, N]."""
    top: Float32Array
    """The log probabilities of `top_ids`, float32 [T, N]."""


def score(
    engine: Engine,
    tokens: TokenArray,
    n_top: int = 0,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Scores:
    """Return the log probability of each token of a text, given those before it, from the second one on.

    `tokens` are int32 [T + 1], and `n_top` is N. The text is read in chunks, and other requests may run in
    between. Raise InputError if the text does not fit the context, Cancelled if `is_cancelled` says so, and
    errors of the loop.
    """
    n = len(tokens) - 1
    if n >= engine.context:
        raise InputError(
            f"this model's maximum context length is {engine.context} tokens: the text has {n + 1}"
        )
    scores = Scores(
        np.empty(max(n, 0), np.float32),
        np.empty((max(n, 0), n_top), np.int32),
        np.empty((max(n, 0), n_top), np.float32),
    )
    is_known = np.zeros(max(n, 0), bool)
    for end in _ends(is_known, min(CHUNK, engine.config.batch)):
        if is_cancelled():
            raise Cancelled("cancelled")
        first = max(0, end - CHUNK)
        found = _rows(engine, tokens[:end], tokens[first + 1 : end + 1], n_top)
        begin = end - len(found[0])
        for whole, part in zip(scores, found, strict=True):
            whole[begin:end] = part
        is_known[begin:end] = True
    return scores


def _ends(is_known: np.ndarray[Any, np.dtype[np.bool_]], chunk: int) -> Iterator[int]:
    """Yield the number of tokens to read next: those of each chunk, and then what is left of them.

    Something is left where another request took the place of the text, so that more than a chunk was read.
    """
    n = len(is_known)
    for end in range(chunk, n + chunk, chunk):
        yield min(end, n)
    while not is_known.all():
        yield int(np.flatnonzero(~is_known)[-1]) + 1


def _rows(engine: Engine, prompt: TokenArray, scored: TokenArray, n_top: int) -> Any:
    sampling = {**parameters_of(SamplingConfig(temp=0.0)), "scored": scored.tolist()}
    sequence = engine.sequence(sampling, limit=1, n_top=n_top)
    try:
        sequence.prefill(prompt)
        found = getattr(sequence.step(), "scored", None)
    finally:
        sequence.cancel()
    if found is None or not len(found[0]):
        raise InputError("the text does not fit the context beside the others: try again later")
    return found
