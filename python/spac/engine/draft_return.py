"""A draft that has left the device returns when it promises enough.

The file of the draft stays open on the CPU. Now and then, it evaluates the last tokens of the text in one
batch. A draft is greedy, so its most probable token at each place shows if it would have been accepted there.
The governor's costs then tell what drafting would bring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.machine.arrays import BoolArray, Int32Array
from spac.model.c_api import Context, Model
from spac.model.pair import ModelPair
from spac.model.params import context_values, model_values

TOKENS = 64
"""The generated tokens that a trial judges, and the most that come before them."""
SHARE = 0.01
"""The share of the time that trials may take."""
WORTH = 1.1
"""The least ratio of the time per token now to the promised one."""
PAYBACK = 2.0
"""The least ratio of the time that is saved in `HORIZON` tokens to the time of both changes of the slots."""
HORIZON = 512
"""Tokens. A draft that does not pay after all leaves again after as many steps (`unused_draft`)."""
_MOST_DOUBLINGS = 6


class DraftOnCpu:
    """A draft model on the CPU, with a small context. Its weights are the system's mapping of the file."""

    def __init__(self, config: EngineConfig, pair: ModelPair) -> None:
        """Load the model. Raise SpacError if that fails."""
        assert config.draft is not None
        values = {**model_values(config, is_draft=True, on_device=False), "use_extra_bufts": False}
        self._model = Model(Path(config.draft), (), {**values, **config.model_params})
        try:
            common = {
                "n_ctx": 2 * TOKENS, "n_batch": TOKENS, "n_ubatch": TOKENS, "n_threads": pair.prompt_threads,
                "n_threads_batch": pair.prompt_threads,
            }  # fmt: skip
            self._context = Context(self._model, {**context_values(config, is_draft=True), **common})
        except BaseException:
            self._model.close()
            raise

    def close(self) -> None:
        """Free the model. Calling it again does nothing."""
        self._context.close()
        self._model.close()

    def agrees(self, tokens: Int32Array) -> BoolArray:
        """Return True for each of the last tokens that the draft would have proposed, bool [TOKENS].

        tokens: int32 [n], with at least `TOKENS` + 1 of them.
        """
        context, first = self._context.pointer, max(0, len(tokens) - 1 - 2 * TOKENS)
        before, judged = np.split(tokens[first:-1], [-TOKENS])
        _core.clear_memory(context)
        failed = before.size and _core.decode(context, before, 0, False)
        if failed or _core.decode(context, judged, before.size, True):
            return np.zeros(TOKENS, np.bool_)
        return np.asarray(_core.logits(context, TOKENS).argmax(axis=1) == tokens[-TOKENS:])


class Text(Protocol):
    """A sequence that is generated."""

    @property
    def tokens(self) -> Int32Array:
        """All tokens, int32 [n]."""

    @property
    def has_images(self) -> bool:
        """True if a draft cannot read it."""


class Judge(Protocol):
    """A governor, or what asks one."""

    def promise(self, agreed: BoolArray) -> float:
        """Return the seconds per token with drafts. agreed: see `rates_of`."""


class DraftReturn:
    """Decides when a draft returns. There is one from each time that the draft leaves until it returns."""

    def __init__(
        self, judge: Judge, open_draft: Callable[[], DraftOnCpu], n_left: int, change_s: float
    ) -> None:
        """Begin after the draft has left for the `n_left`-th time, which is 1 at first.

        The trials begin after `HORIZON` tokens, and twice as many for each time that it left before.
        judge: tells what drafts would bring.
        change_s: the seconds that a change of the slots takes, with the copies.
        """
        self._judge, self._open, self._change_s = judge, open_draft, change_s
        self._draft: DraftOnCpu | None = None
        self._wait = HORIZON << min(n_left - 1, _MOST_DOUBLINGS)
        self._plain: deque[float] = deque(maxlen=TOKENS)
        self._n_text = 0  # generated tokens at the end of the sequence
        self._n_tokens = 0  # of the last step
        self._budget_s = 0.0
        self._promised = False
        self.agreed: BoolArray = np.zeros(0, np.bool_)
        """The result of the last trial."""
        self.trial_s = 0.0
        """The seconds of all trials."""
        self.n_trials = 0
        """The number of trials."""

    def close(self) -> None:
        """Free the draft on the CPU. Calling it again does nothing."""
        if self._draft is not None:
            self._draft.close()
        self._draft = None

    def begin(self) -> None:
        """Note that a new text begins."""
        self._n_text = 0

    def observe(self, step: _core.Step) -> None:
        """Count a step without draft."""
        seconds = (step.verify_ns + step.sample_ns) * 1e-9
        if len(step.tokens) != self._n_tokens:  # Another number of sequences takes other times.
            self._plain.clear()
            self._n_tokens = len(step.tokens)
        self._plain.append(seconds / max(1, self._n_tokens))
        self._n_text += len(step.tokens)
        self._wait -= len(step.tokens)
        self._budget_s += SHARE * seconds

    def returns(self, text: Text) -> bool:
        """Return True if the draft promises enough at two trials in a row. A trial runs when it is due.

        text: the session of one sequence, or what `Batch.longest_text` returns of several.
        Raise SpacError if the draft cannot be loaded on the CPU.
        """
        due = self._wait <= 0 and (self._promised or self._budget_s >= 0.0)
        if not due or self._n_text < TOKENS or text.has_images:
            return False
        promised, self._promised = self._promised, self._try(text.tokens)
        return promised and self._promised

    def _try(self, tokens: Int32Array) -> bool:
        started = perf_counter()
        if self._draft is None:
            self._draft = self._open()
        self.agreed = self._draft.agrees(tokens)
        took = perf_counter() - started
        self._budget_s -= took
        self.trial_s += took
        self.n_trials += 1
        self._wait = TOKENS
        now, promise = median(self._plain), self._judge.promise(self.agreed)
        return now >= WORTH * promise and (now - promise) * HORIZON >= PAYBACK * 2 * self._change_s
