"""Sequences that a session leaves and returns to, and memories that can go back only in part.

The next tokens are always those of a new context.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.errors import Cancelled, InputError
from spac.machine.arrays import Float32Array
from tests.conftest import TinyModel
from tests.session.lab import GREEDY, Lab, Tokens, generate, prompt, take
from tests.session.recurrent import write_lfm2, write_mamba
from tests.session.test_mtp import MTP_CONTEXT

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

CACHE: dict[str, Any] = {"prompt_cache_bytes": 1 << 30}
CHECKPOINTS: dict[str, Any] = {"n_checkpoints": 4, "checkpoint_step": 100}
LONG: dict[str, Any] = {"n_ctx": 1024, "n_batch": 64, "n_ubatch": 64}


def conversation(*parts: tuple[int, int]) -> Tokens:
    """Return the tokens of pieces (tokens, seed)."""
    return np.concatenate([prompt(n, seed) for n, seed in parts])


# Memories of every kind. Each has the session, its target's context, a function that makes an equal context
# for plain text, and the model's path.

Made = tuple[_core.Session, int, Callable[[], int], Path]
Kind = Callable[[Lab, TinyModel, Path], Made]


def dense(lab: Lab, make: TinyModel, _folder: Path) -> Made:
    path, draft = make("qwen3"), make("llama", n_layer=2, seed=7)
    context = lab.context(path, **LONG)
    session = lab.session(context, lab.context(draft, **LONG), draft_max=4, **CACHE, **GREEDY)
    return session, context, lambda: lab.context(path, **LONG), path


def rolls_back(lab: Lab, _make: TinyModel, folder: Path) -> Made:
    return _looking_up(lab, write_lfm2(folder / "lfm2.gguf"), LONG, n_rs_seq=4)


def a_state(lab: Lab, _make: TinyModel, folder: Path) -> Made:
    path = write_mamba(folder / "mamba.gguf")
    context = lab.context(path, **LONG)
    session = lab.session(context, **CACHE, **CHECKPOINTS, **GREEDY)
    return session, context, lambda: lab.context(path, **LONG), path


def delta_rule(lab: Lab, make: TinyModel, _folder: Path) -> Made:
    return _looking_up(lab, make("qwen35moe"), LONG, n_rs_seq=4)


def compressed(lab: Lab, make: TinyModel, _folder: Path) -> Made:
    return _looking_up(lab, make("deepseek4"), LONG, n_rs_seq=4)


def a_window(lab: Lab, make: TinyModel, _folder: Path) -> Made:
    size = {**LONG, "n_batch": 32, "n_ubatch": 32, "swa_full": False}
    return _looking_up(lab, make("step35", n_swa=16), size)


def hidden_states(lab: Lab, make: TinyModel, _folder: Path) -> Made:
    path = make("glm4moe", n_layer=4, options={"mtp": 1})
    target = lab.context(path, **LONG)
    draft = lab.context(path, ctx_type=MTP_CONTEXT, ctx_other=target, **LONG)
    session = lab.session(target, draft, draft_types=["draft-mtp"], draft_max=3, **CACHE, **GREEDY)
    return session, target, lambda: lab.context(path, **LONG), path


def _looking_up(lab: Lab, path: Path, size: dict[str, Any], **params: Any) -> Made:
    """Return a memory with drafts of n-grams, which are mostly wrong."""
    values = {**CACHE, **CHECKPOINTS, **GREEDY, "draft_types": ["ngram-map-k"], "draft_max": 4}
    context = lab.context(path, **size, **params)
    return lab.session(context, ngram_size_n=1, **values), context, lambda: lab.context(path, **size), path


# `compressed` is not among them. Its indexer and routers depend on the last bit, however batches are cut.
KINDS = [dense, rolls_back, a_state, delta_rule, a_window, hidden_states]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_comes_next_the_memory_is_a_new_contexts(
    lab: Lab, tiny_model: TinyModel, tmp_path: Path, kind: Kind, seed: int
) -> None:
    """Random conversations alternate. They are continued, cut, changed near their end, and interrupted.

    Logits are compared instead of texts. Keys have other places in the memory, so sums have another order,
    and texts differ at near-ties.
    """
    session, context, make, path = kind(lab, tiny_model, tmp_path)
    alike = make()
    plain = lab.session(alike, **GREEDY)
    rng = np.random.default_rng(seed)
    texts = [conversation((300, 0), (100, i)) for i in range(2)] + [prompt(150, 9), prompt(90, 10)]
    n_reused = 0
    for turn in range(20):
        at = int(rng.integers(len(texts)))
        text = texts[at]
        back = int(rng.choice([0, 0, 1, 2, 3, 5, 12, 120]))
        text = np.concatenate(
            [text[: max(20, len(text) - back)], prompt(int(rng.integers(1, 90)), 100 + turn)]
        )
        if len(text) > 900:
            text = prompt(200, at)
        if session.draft_max:
            session.set_draft_length(int(rng.integers(session.draft_max + 1)))
        if rng.random() < 0.2:
            session.cancel()
            with pytest.raises(Cancelled):
                session.prefill(text)
        session.prefill(text)
        n_reused += session.n_reused
        session.step()
        found = first_logits(lab, context, path)
        plain.reset()
        plain.prefill(text)
        plain.step()
        expected = first_logits(lab, alike, path)
        assert np.isfinite(expected).all()
        assert np.abs(found - expected).max() < 0.02 * expected.std(), f"turn {turn}"
        take(session, int(rng.integers(0, 20)))
        texts[at] = session.tokens
    assert n_reused > 0
    assert session.cached["n_recalled"] > 0


def first_logits(lab: Lab, context: int, path: Path) -> Float32Array:
    """Return the logits of the last verification's first token."""
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(lab.model(path)))
    return np.ctypeslib.as_array(api.llama_get_logits_ith(context, 0), (n_vocab,)).copy()


# Sequences that a session leaves


def test_who_comes_back_goes_on(lab: Lab, target: Path, other: Path) -> None:
    session = lab.session(
        lab.context(target, **LONG), lab.context(other, **LONG), draft_max=4, **CACHE, **GREEDY
    )
    long, short = prompt(400), prompt(80, 1)
    first = np.concatenate([long, np.array(generate(session, long, 10), np.int32)])
    assert session.cached == {"n_prompts": 0, "bytes": 0, "n_stored": 0, "n_recalled": 0}
    session.prefill(short)
    assert (session.n_reused, session.cached["n_prompts"], session.cached["n_stored"]) == (0, 1, 1)
    session.prefill(first)
    assert session.n_reused == 409
    assert session.cached["n_recalled"] == 1
    assert session.cached["n_prompts"] == 1, "the short one is there now, the long one in the memory"
    session.prefill(short)
    assert session.n_reused == 79


def test_a_conversation_that_goes_on_copies_nothing(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target, **LONG), **CACHE, **GREEDY)
    text = prompt(200)
    for turn in range(5):
        generate(session, text, 40)
        text = np.concatenate([text, prompt(60, turn)])  # the answer is left out, as if all reasoning
    assert session.cached["n_stored"] == 0


def test_a_beginning_that_others_share_stays(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target, **LONG), **CACHE, **GREEDY)
    shared = prompt(100)
    session.prefill(np.concatenate([shared, prompt(300, 1)]))
    session.prefill(prompt(150, 2))
    session.prefill(np.concatenate([shared, prompt(100, 3)]))
    assert session.n_reused == 100
    assert session.cached["n_prompts"] == 2
    session.prefill(np.concatenate([shared, prompt(300, 1)]))
    assert session.n_reused == 399


def test_the_room_is_kept_to(lab: Lab, target: Path) -> None:
    probe = lab.session(lab.context(target, **LONG), **CACHE, **GREEDY)
    probe.prefill(prompt(200))
    probe.prefill(prompt(200, 1))
    one = probe.cached["bytes"]
    session = lab.session(lab.context(target, **LONG), prompt_cache_bytes=int(2.5 * one), **GREEDY)
    for i in range(5):
        session.prefill(prompt(200, i))
        assert session.cached["bytes"] <= 2.5 * one
    assert session.cached["n_prompts"] == 2
    session.prefill(prompt(200, 0))
    assert session.n_reused == 0, "the oldest went first"
    session.prefill(prompt(200, 4))
    assert session.n_reused == 199
    session.prefill(prompt(900, 8))
    n_prompts = session.cached["n_prompts"]
    session.prefill(prompt(100, 9))
    assert session.cached["n_prompts"] == n_prompts, "what is larger than the room puts nothing out"
    session.reset()
    assert session.cached["bytes"] == 0


def test_without_room_nothing_is_kept(lab: Lab, target: Path) -> None:
    session = lab.session(lab.context(target, **LONG), **GREEDY)
    session.prefill(prompt(200))
    session.prefill(prompt(200, 1))
    session.prefill(prompt(200))
    assert (session.n_reused, session.cached["n_stored"]) == (0, 0)


# Memories that cannot go back


@pytest.mark.parametrize("kind", [rolls_back, a_state, delta_rule, compressed, a_window])
def test_a_checkpoint_before_the_answer_is_gone_back_to(
    lab: Lab, tiny_model: TinyModel, tmp_path: Path, kind: Kind
) -> None:
    session, _context, _make, _path = kind(lab, tiny_model, tmp_path)
    text = prompt(500)
    generate(session, text, 400)
    session.prefill(np.concatenate([text[:-3], prompt(40, 2)]))
    assert session.n_reused == 491, "8 tokens before the last"
    session.prefill(np.concatenate([text[:250], prompt(300, 3)]))
    assert session.n_reused in (128, 224), "the last of a step of 100 tokens, at the end of a piece"
    session.prefill(np.concatenate([text[:20], prompt(300, 3)]))
    assert session.n_reused == 0


def test_without_checkpoints_it_begins_anew(lab: Lab, tmp_path: Path) -> None:
    path = write_lfm2(tmp_path / "lfm2.gguf")
    session = lab.session(lab.context(path, **LONG), **GREEDY)
    text = prompt(500)
    generate(session, text, 20)
    session.prefill(np.concatenate([text[:-3], prompt(40, 2)]))
    assert session.n_reused == 0


@pytest.mark.parametrize("n_made", [0, 1, 2, 5])
@pytest.mark.parametrize("n_back", [1, 2, 3, 4])
def test_a_state_takes_back_only_what_it_has_versions_of(
    lab: Lab, tmp_path: Path, n_back: int, n_made: int
) -> None:
    """llama.cpp would silently go back to versions of earlier batches."""
    path = write_lfm2(tmp_path / "lfm2.gguf")
    session = lab.session(lab.context(path, n_rs_seq=4), draft_types=["ngram-simple"], draft_max=4, **GREEDY)
    session.set_draft_length(0)
    session.prefill(prompt(41))
    take(session, n_made)
    text = np.concatenate([session.tokens[: -1 - n_back], np.array([7, 9, 11], np.int32)])
    assert generate(session, text, 20) == generate(lab.plain(path, **GREEDY), text, 20)


@pytest.mark.parametrize("kind", [rolls_back, a_state])
def test_what_a_listener_throws_leaves_the_sequence_as_it_was(
    lab: Lab, tiny_model: TinyModel, tmp_path: Path, kind: Kind
) -> None:
    session, _context, make, _path = kind(lab, tiny_model, tmp_path)
    expected = generate(lab.session(make(), **GREEDY), prompt(200), 30)
    session.prefill(prompt(200))
    made = take(session, 10)

    def stop(_event: object) -> None:
        raise TimeoutError

    session.on("draft_end", stop)
    with pytest.raises(TimeoutError):
        session.step()
    session.on("draft_end", None)
    session.cancel()
    with pytest.raises(Cancelled):
        session.step()
    n_had = len(session.tokens) - 200
    assert made == expected[:10]
    assert take(session, 30 - n_had) == expected[n_had:30]


@pytest.mark.parametrize("delay", [0.2, 0.35, 0.5, 0.65, 0.8])
def test_a_window_that_was_stopped_in_a_prompt(lab: Lab, tiny_model: TinyModel, delay: float) -> None:
    """Evaluated parts of the batch have overwritten the tokens before it."""
    path, text = tiny_model("step35", n_swa=16), prompt(1300)
    size = {"n_ctx": 2048, "n_batch": 1024, "n_ubatch": 64, "swa_full": False}
    whole = _timed(lab.session(lab.context(path, **size), **GREEDY), text)
    context = lab.context(path, **size)
    session = lab.session(context, **CHECKPOINTS, **GREEDY)
    session.prefill(text[:300])
    timer = threading.Timer(delay * whole, session.cancel)
    timer.start()
    with contextlib.suppress(Cancelled):
        session.prefill(text)
    timer.join()
    with contextlib.suppress(Cancelled):  # the cancellation came late
        session.prefill(text[:301])
    check(lab, session, context, path, text[:301], lab.context(path, **size))


def test_a_window_that_is_left_behind(lab: Lab, tiny_model: TinyModel) -> None:
    path, text = tiny_model("step35", n_swa=16), prompt(1300)
    size = {"n_ctx": 2048, "n_batch": 1024, "n_ubatch": 64, "swa_full": False}
    context = lab.context(path, **size)
    session = lab.session(context, **GREEDY)
    session.prefill(text)
    session.adopt(text[:299])
    check(lab, session, context, path, text[:301], lab.context(path, **size))


@pytest.mark.parametrize("full", [False, True])
def test_who_comes_back_to_a_window_does_not_lose_what_is_there(
    lab: Lab, tiny_model: TinyModel, full: bool
) -> None:
    """A state holds only the part of a window that the next token sees."""
    path = tiny_model("step35", n_swa=16)
    size = {**LONG, "swa_full": full}
    session = lab.session(lab.context(path, **size), **CACHE, **CHECKPOINTS, **GREEDY)
    first, second = conversation((80, 0), (150, 1)), conversation((80, 0), (140, 2))
    for text in (first, second):
        generate(session, text, 1)
    session.prefill(np.concatenate([first[:200], prompt(30, 3)]))
    assert session.cached["n_recalled"] == 0, "the first has lost what it would need there"
    assert session.n_reused == 80, "what is there has the beginning still"
    session.prefill(np.concatenate([first[:225], prompt(30, 3)]))
    assert session.n_reused >= 200, "from its checkpoint, or from what is there"


def _timed(session: _core.Session, text: Tokens) -> float:
    begun = time.perf_counter()
    session.prefill(text)
    return time.perf_counter() - begun


def check(lab: Lab, session: _core.Session, context: int, path: Path, text: Tokens, alike: int) -> None:
    """Assert that the first logits after `text` are a new context's."""
    session.prefill(text)
    session.step()
    found = first_logits(lab, context, path)
    plain = lab.session(alike, **GREEDY)
    plain.prefill(text)
    plain.step()
    expected = first_logits(lab, alike, path)
    assert np.abs(found - expected).max() < 0.02 * expected.std()


def test_settings_that_cannot_be(lab: Lab, target: Path) -> None:
    with pytest.raises(InputError, match="n_checkpoints is -1"):
        lab.plain(target, n_checkpoints=-1)
    with pytest.raises(InputError, match="checkpoint_step 0"):
        lab.plain(target, checkpoint_step=0)
