"""The inputs that both libraries get: a prompt, single greedy tokens, verifications with rewinding, a long
prompt.

A script works through the `Decoder` protocol only, so that it does not know which library is behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

N_PROMPT = 40
N_GREEDY = 32
N_VERIFY = 9
N_LONG = 600
# How many of a verification's 9 tokens are kept: all, none but the first, and in between.
KEPT = (9, 1, 4, 6, 2)


class Decoder(Protocol):
    """A context of either library."""

    n_vocab: int

    def decode(self, tokens: npt.NDArray[np.int32], position: int, wanted: list[int]) -> Logits:
        """Evaluates tokens at position, position + 1, …; logits [len(wanted), n_vocab] of the tokens
        wanted."""

    def rewind(self, position: int) -> None:
        """Forgets everything from `position` on."""


def run_script(decoder: Decoder, before_step: Callable[[], None]) -> dict[str, Logits]:
    """Runs the script on an empty context; logits by step's name, in order. The script's tokens depend on the
    model's logits only where it is greedy, so one wrong logit is seen by everything after it."""
    rng = np.random.default_rng(7)
    out: dict[str, Logits] = {}

    def step(name: str, tokens: npt.NDArray[np.int32], position: int, wanted: list[int]) -> Logits:
        before_step()
        out[name] = decoder.decode(tokens, position, wanted)
        return out[name]

    def draw(n: int) -> npt.NDArray[np.int32]:
        return rng.integers(0, 256, n, dtype=np.int32)

    decoder.rewind(0)
    position = N_PROMPT
    token = int(step("prompt", draw(N_PROMPT), 0, [N_PROMPT - 1])[0].argmax())
    for i in range(N_GREEDY):
        token = int(step(f"greedy {i}", np.array([token], np.int32), position, [0])[0].argmax())
        position += 1
    for i, kept in enumerate(KEPT):
        tokens = draw(N_VERIFY)
        tokens[0] = token
        logits = step(f"verify {i}", tokens, position, list(range(N_VERIFY)))
        position += kept
        token = int(logits[kept - 1].argmax())
        decoder.rewind(position)
    decoder.rewind(0)
    step("long prompt", draw(N_LONG), 0, [0, 1, N_LONG // 2, N_LONG - 2, N_LONG - 1])
    step("after it", np.array([token], np.int32), N_LONG, [0])
    return out
