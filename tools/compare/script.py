"""Define the inputs of both libraries: a prompt, single greedy tokens, verifications with rewinding, a long
prompt.

A script works through the `Decoder` protocol only, so that it does not know which library is behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

N_PROMPT = 40
N_GREEDY = 32
N_VERIFY = 9
N_LONG = 600
# The number of a verification's 9 tokens that are kept: all, only the first, and numbers in between.
KEPT = (9, 1, 4, 6, 2)


class Decoder(Protocol):
    """A context of either library."""

    n_vocab: int

    def decode(self, tokens: Tokens, position: int, wanted: list[int]) -> Logits:
        """Evaluate tokens at position, position + 1, …. Return logits [len(wanted), n_vocab] of the wanted
        tokens."""

    def rewind(self, position: int) -> None:
        """Remove everything from `position` on."""

    def save(self) -> bytes:
        """Return the state of the sequence."""

    def restore(self, state: bytes) -> None:
        """Set the sequence's state to what `save` returned."""

    def shift(self, start: int, end: int, position: int) -> None:
        """Shift the context: remove the tokens from `start` to `end`, and move those up to `position` to
        their place."""

    def states(self, n: int) -> Logits:
        """Return the hidden states [n, …] of the last batch's tokens, which the predictor reads."""

    @property
    def predictor(self) -> Predictor:
        """The context that drafts from hidden states."""


class Predictor(Protocol):
    """A context of prediction layers (MTP), or of a draft model that reads hidden states."""

    n_vocab: int

    n_layer: int

    def predict(
        self, tokens: Tokens, states: Logits, position: int, wanted: list[int], layer: int = 0
    ) -> Logits:
        """Evaluate tokens, with the hidden states before them, in one of the layers. Return logits and hidden
        states [len(wanted), n_vocab + …] of the wanted tokens."""

    def decode(self, tokens: Tokens, position: int, wanted: list[int]) -> Logits:
        """Evaluate tokens alone (DFlash). Return logits [len(wanted), n_vocab] of the wanted tokens."""

    def read(self, states: Logits, position: int) -> Logits:
        """Read a target's hidden states. Return the draft's own ones (EAGLE-3), or nothing (DFlash)."""

    def rewind(self, position: int) -> None:
        """Remove everything from `position` on."""


class _Steps:
    """A running script: its decoder, its random tokens, and the logits so far by step's name, in order."""

    def __init__(self, decoder: Decoder, before_step: Callable[[], None], seed: int = 11) -> None:
        self._decoder, self._before_step = decoder, before_step
        self._rng = np.random.default_rng(seed)
        self.logits: dict[str, Logits] = {}
        decoder.rewind(0)

    def draw(self, n: int) -> Tokens:
        return self._rng.integers(0, 256, n, dtype=np.int32)

    def decode(self, name: str, tokens: Tokens, position: int, wanted: Sequence[int]) -> Logits:
        """Do a step. Return the logits of the wanted tokens."""
        self._before_step()
        self.logits[name] = self._decoder.decode(tokens, position, list(wanted))
        return self.logits[name]

    def random(self, name: str, n: int, position: int) -> int:
        """Evaluate `n` random tokens, with the logits of the last two. Return the token that follows."""
        return int(self.decode(name, self.draw(n), position, (n - 2, n - 1))[-1].argmax())

    def greedy(self, name: str, n: int, token: int, position: int) -> int:
        """Evaluate `n` greedy tokens, one by one, from `token` on. Return the token that would come next."""
        for i in range(n):
            logits = self.decode(f"{name} {i}", np.array([token], np.int32), position + i, (0,))
            token = int(logits[0].argmax())
        return token


def run_script(
    decoder: Decoder, before_step: Callable[[], None], n_greedy: int = N_GREEDY, n_long: int = N_LONG
) -> dict[str, Logits]:
    """Run the script on an empty context, and return logits by step's name, in order. The script's tokens
    depend on the model's logits only where it is greedy. So everything after a wrong logit shows the
    error."""
    steps = _Steps(decoder, before_step, 7)
    token = int(steps.decode("prompt", steps.draw(N_PROMPT), 0, (N_PROMPT - 1,))[0].argmax())
    token = steps.greedy("greedy", n_greedy, token, N_PROMPT)
    position = N_PROMPT + n_greedy
    for i, kept in enumerate(KEPT):
        tokens = steps.draw(N_VERIFY)
        tokens[0] = token
        token = int(steps.decode(f"verify {i}", tokens, position, range(N_VERIFY))[kept - 1].argmax())
        position += kept
        decoder.rewind(position)
    decoder.rewind(0)
    steps.decode("long prompt", steps.draw(n_long), 0, (0, 1, n_long // 2, n_long - 2, n_long - 1))
    steps.decode("after it", np.array([token], np.int32), n_long, (0,))
    return steps.logits


def run_first_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run the first step of `run_script`."""
    steps = _Steps(decoder, before_step, 7)
    steps.decode("prompt", steps.draw(N_PROMPT), 0, (N_PROMPT - 1,))
    return steps.logits


LENGTHS = (2, 4, 2, 3, 4, 3, 2, 2, 5, 4, 3, 2, 5)
"""Draft lengths that change, as a governor chooses them."""


def run_short_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run a prompt, single tokens, a few at once, and a prompt longer than 64 tokens. No token is removed, so
    that recurrent memories can follow."""
    steps = _Steps(decoder, before_step)
    token = steps.random("prompt", 24, 0)
    steps.greedy("greedy", 5, token, 24)
    token = steps.random("five tokens", 5, 29)
    steps.greedy("then", 2, token, 34)
    decoder.rewind(0)
    steps.random("long prompt", 70, 0)
    return steps.logits


def run_state_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run tokens from a state twice: as it is, and saved and restored. Steps "before i" and "after i" have
    the same tokens."""
    steps = _Steps(decoder, before_step)
    token = steps.random("prompt", 40, 0)
    token = steps.greedy("first", 4, token, 40)
    state = decoder.save()
    steps.greedy("before", 6, token, 44)
    decoder.rewind(0)
    steps.random("something else", 20, 0)
    decoder.rewind(0)
    decoder.restore(state)
    steps.greedy("after", 6, token, 44)
    return steps.logits


def run_shift_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run context shifts: tokens in the middle are removed, later ones move up."""
    steps = _Steps(decoder, before_step)
    token = steps.random("prompt", 60, 0)
    decoder.shift(8, 28, 60)
    token = steps.greedy("shifted", 6, token, 40)
    decoder.shift(4, 14, 46)
    steps.greedy("shifted again", 6, token, 36)
    return steps.logits


def run_prompts_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run prompts only."""
    steps = _Steps(decoder, before_step)
    for i in range(4):
        decoder.rewind(0)
        steps.random(f"prompt {i}", 60, 0)
    return steps.logits


def run_lengths_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run a prompt of 24 tokens, then batches of `LENGTHS` tokens."""
    steps = _Steps(decoder, before_step)
    steps.random("prompt", 24, 0)
    position = 24
    for i, n in enumerate(LENGTHS):
        steps.random(f"batch {i} of {n}", n, position)
        position += n
    return steps.logits


BATCHES = (1, 2, 4, 8, 9, 17, 40)
"""Batch sizes on both sides of where kernels change: from one token to several, and from 8 to 9."""


def run_batches_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run batches of `BATCHES` random tokens in an empty context, and as many behind the small ones, with
    every row. An error in one batch does not spread to the next."""
    steps = _Steps(decoder, before_step, 13)
    for n in BATCHES:
        decoder.rewind(0)
        for name, position in (("first", 0), ("behind it", n))[: 2 if n <= 8 else 1]:
            steps.decode(f"{n} tokens, {name}", steps.draw(n), position, range(n))
    return steps.logits


N_DRAFT = 3


def run_mtp_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run a target and its prediction layers (one, or `N_DRAFT`) as llama.cpp's `draft-mtp` runs them, with
    each draft accepted, because recurrent memories cannot drop tokens. The prediction layers read every token
    together with the hidden state of the token before it."""
    steps = _Steps(decoder, before_step)
    n_vocab, predictor = decoder.n_vocab, decoder.predictor

    def predict(
        name: str, tokens: Tokens, states: Logits, position: int, wanted: Sequence[int], layer: int
    ) -> Logits:
        before_step()
        steps.logits[name] = predictor.predict(tokens, states, position, list(wanted), layer)
        return steps.logits[name]

    def evaluate(
        name: str, tokens: Tokens, position: int, state: Logits | None, wanted: Sequence[int] = ()
    ) -> tuple[int, Logits]:
        """Evaluate tokens on both sides. Return the next token, and the last token's hidden state."""
        logits = steps.decode(name, tokens, position, range(len(tokens)))
        steps.logits[f"{name}, states"] = states = decoder.states(len(tokens))
        before = np.concatenate([np.zeros_like(states[:1]) if state is None else state, states[:-1]])
        for layer in range(predictor.n_layer):
            predictor.rewind(position)
            predict(f"{name}, read by {layer}", tokens, before, position, wanted, layer)
        return int(logits[-1].argmax()), states[-1:]

    def draft(name: str, token: int, position: int, states: Logits) -> Tokens:
        """Return the token and the drafted ones behind it. Each of several layers drafts one token, and reads
        the drafted ones before it anew."""
        tokens, chained = [token], predictor.n_layer > 1
        for i in range(N_DRAFT):
            start, layer = (0, i) if chained else (i, 0)
            predictor.rewind(position + start)
            behind = np.array(tokens[start:], np.int32)
            row = predict(f"{name}, draft {i}", behind, states[start:], position + start, (i - start,), layer)
            tokens.append(int(row[0, :n_vocab].argmax()))
            states = np.concatenate([states, row[:, n_vocab:]])
        predictor.rewind(position)
        return np.array(tokens, np.int32)

    for n, wanted in ((24, ()), (70, range(70))):
        decoder.rewind(0)
        token, state = evaluate(f"prompt of {n}", steps.draw(n), 0, None, wanted)
        for i in range(2):
            position = n + i * (N_DRAFT + 1)
            drafted = draft(f"{n} + {i}", token, position, state)
            token, state = evaluate(f"{n} + {i}", drafted, position, state)
        draft(f"{n} + 2", token, n + 2 * (N_DRAFT + 1), state)
    return steps.logits


def run_eagle3_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run a target and a draft model as llama.cpp's `draft-eagle3` runs them, with each draft accepted. The
    draft reads each token at the position before it, together with that position's hidden state."""
    steps = _Steps(decoder, before_step)
    n_vocab, predictor = decoder.n_vocab, decoder.predictor

    def predict(name: str, tokens: Tokens, states: Logits, position: int, wanted: Sequence[int]) -> Logits:
        before_step()
        steps.logits[name] = predictor.predict(tokens, states, position, list(wanted))
        return steps.logits[name]

    for n in (24, 70):
        decoder.rewind(0)
        tokens, position, pending = steps.draw(n), 0, np.empty((0, 0), np.float32)
        for i in range(3):
            name, start = f"{n} + {i}", position - len(pending)
            logits = steps.decode(name, tokens, position, range(len(tokens)))
            steps.logits[f"{name}, inputs"] = inputs = decoder.states(len(tokens))
            predictor.rewind(start)
            before_step()
            steps.logits[f"{name}, read"] = states = predictor.read(inputs, start)
            before = np.concatenate([pending, states[:-1]]) if len(pending) else states[:-1]
            predict(f"{name}, fed", tokens[start - position + 1 :], before, start, ())
            position += len(tokens)
            pending = state = states[-1:]
            drafted = [int(logits[-1].argmax())]
            for k in range(N_DRAFT):
                one = np.array(drafted[-1:], np.int32)
                row = predict(f"{name}, draft {k}", one, state, position - 1 + k, (0,))
                drafted.append(int(row[0, :n_vocab].argmax()))
                state = row[:, n_vocab:]
            tokens = np.array(drafted, np.int32)
    return steps.logits


def run_dflash_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Run a target and a draft model as llama.cpp's `draft-dflash` runs them, with each draft accepted. The
    draft reads the hidden states of all positions, and drafts in one batch, in place of masks."""
    steps = _Steps(decoder, before_step)
    predictor = decoder.predictor
    for n in (24, 70):
        decoder.rewind(0)
        tokens, position = steps.draw(n), 0
        for i in range(3):
            name = f"{n} + {i}"
            logits = steps.decode(name, tokens, position, range(len(tokens)))
            steps.logits[f"{name}, inputs"] = inputs = decoder.states(len(tokens))
            before_step()
            predictor.read(inputs, position)
            position += len(tokens)
            masked = np.full(N_DRAFT + 1, decoder.n_vocab - 1, np.int32)
            masked[0] = logits[-1].argmax()
            before_step()
            rows = predictor.decode(masked, position, list(range(len(masked))))
            steps.logits[f"{name}, draft"] = rows
            predictor.rewind(position)
            tokens = np.concatenate([masked[:1], rows[1:].argmax(1).astype(np.int32)])
    return steps.logits


SCRIPTS = {
    "full": run_script, "half": partial(run_script, n_greedy=N_GREEDY // 2, n_long=N_LONG // 2),
    "first": run_first_script, "short": run_short_script, "state": run_state_script,
    "shift": run_shift_script, "prompts": run_prompts_script, "lengths": run_lengths_script,
    "batches": run_batches_script, "mtp": run_mtp_script,
    "eagle3": run_eagle3_script, "dflash": run_dflash_script,
}  # fmt: skip
"""The scripts that a case may run."""
