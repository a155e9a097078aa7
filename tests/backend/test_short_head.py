"""A short head gives the known tokens' logits as the whole one does, and -inf for all others."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from spac.model.c_api import Context, Model

N_ROWS = 64
TOKENS = [3, 1, 4, 1, 5, 200]


@contextmanager
def context_of(path, head):
    """Open a model on the simulated device with a context that has the short head."""
    model = Model(path, (_core.device_handle("simulated"),), {})
    with _core.ShortHeadScope(head):
        context = Context(
            model,
            {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16, "n_threads": 1, "n_threads_batch": 1},
        )
    try:
        yield context.pointer
    finally:
        context.close()
        model.close()


def logits_of(context):
    """Return the logits behind each of TOKENS, float32 [len(TOKENS), n_vocab]."""
    _core.clear_memory(context)
    rows = []
    for i, token in enumerate(TOKENS):
        assert _core.decode(context, [token], i, True) == 0
        rows.append(_core.logits(context, 1)[0].copy())
    return np.stack(rows)


def test_known_tokens_have_the_same_logits(tiny_model):
    head = _core.ShortHead(N_ROWS)
    with context_of(tiny_model("qwen3"), head) as context:
        assert (head.n_rows, head.n_vocab) == (N_ROWS, 272)
        whole = logits_of(context)
        head.set_on(True)
        short = logits_of(context)
        known = np.isfinite(short)
        n_first = N_ROWS - N_ROWS // 8
        assert known[:, :n_first].all()
        assert not known[:, n_first:].any()
        np.testing.assert_allclose(short[known], whole[known], rtol=1e-5, atol=1e-5)
        assert np.isneginf(short[~known]).all()

        head.note([1, 2, 100, 200, 100])
        assert (head.n_noted, head.n_learned) == (5, 2)
        known[:, [100, 200]] = True
        noted = logits_of(context)
        np.testing.assert_array_equal(np.isfinite(noted), known)
        np.testing.assert_allclose(noted[known], whole[known], rtol=1e-5, atol=1e-5)

        head.set_on(False)
        np.testing.assert_array_equal(logits_of(context), whole)


def test_the_latest_tokens_stay(tiny_model):
    head = _core.ShortHead(16)  # with room for two noted tokens
    with context_of(tiny_model("qwen3"), head) as context:
        head.set_on(True)
        head.note([100, 101, 102])
        assert np.flatnonzero(np.isfinite(logits_of(context)[0]))[14:].tolist() == [101, 102]
        head.note([101, 100, -1, 100_000])
        assert head.n_learned == 4
        assert np.flatnonzero(np.isfinite(logits_of(context)[0]))[14:].tolist() == [100, 102]


def test_batches_use_the_whole_head(tiny_model):
    head = _core.ShortHead(N_ROWS)
    with context_of(tiny_model("qwen3"), head) as context:
        head.set_on(True)
        assert _core.decode(context, TOKENS, 0, True) == 0
        assert np.isfinite(_core.logits(context, len(TOKENS))).all()


def test_a_head_that_cannot_be_shortened_stays_whole(tiny_model):
    head = _core.ShortHead(200)  # The vocabulary has 272 tokens.
    with context_of(tiny_model("qwen3"), head) as context:
        assert (head.n_rows, head.bytes) == (0, 0)
        head.set_on(True)
        assert not head.on
        head.note(TOKENS)
        assert head.n_noted == 0
        assert np.isfinite(logits_of(context)).all()
    with pytest.raises(InputError, match="at least 8 tokens"):
        _core.ShortHead(7)
