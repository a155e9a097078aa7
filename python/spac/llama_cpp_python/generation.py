"""Generations of tokens, not of text, for `spac.Llama`, and their statistics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spac import _core
from spac.engine.generation import Generation
from spac.errors import InputError
from spac.llama_cpp_python.logprobs import Logprobs
from spac.machine.device_memory import in_use
from spac.model.c_api import TokenArray
from spac.stats import Meter, RunStats, Setting

if TYPE_CHECKING:
    from spac.engine import Engine

_NO_END = 1 << 30
_MORE = 3  # tokens beyond the expected ones, which may complete a character
Tokens = Generator[int, Sequence[int] | None, None]


class TokenRun(Generation):
    """A generation of tokens, not of text; it ends at its limit, at an end token, or with a full context."""

    def __init__(
        self,
        engine: Engine,
        sampling: Mapping[str, Any],
        setting: Setting,
        prompt: TokenArray,
        n_unseen: int,
        *,
        limit: int | None = None,
        logprobs: Logprobs | None = None,
        images: _core.ImagePrompt | None = None,
    ) -> None:
        """Prepare a generation; see `Engine.sequence` and `Generation` for the other arguments.

        The penalties do not look back on the first `n_unseen` tokens. The loop ends soon after
        `limit` tokens, if it is given. `logprobs` records the tokens' log probabilities.
        """
        sequence = engine.sequence(
            sampling,
            None if limit is None else limit + _MORE,
            -1 if logprobs is None else logprobs.n_top,
        )
        super().__init__(
            engine.target, sequence, engine.experts, setting, prompt, None, (), images=images,
            **engine.watched(),
        )  # fmt: skip
        self._prompt, self._n_unseen, self._logprobs = prompt, n_unseen, logprobs
        self._fresh: deque[int] = deque()
        if logprobs is not None:
            logprobs.begin()

    def leave(self) -> None:
        """Leave the loop. A second call does nothing."""
        self._end()

    def each(self) -> Iterator[int]:
        """Yield the tokens one by one, including those that would end a text."""
        meter = self._meter
        self._prefill(self._prompt)
        while meter.reason != "length":
            self._step()
            reason, meter.reason = meter.reason, ""
            while self._fresh:
                yield self._deliver(self._fresh.popleft())
            if reason == "length":
                meter.reason = reason

    def _step(self) -> str:
        text = super()._step()
        if self._logprobs is not None and self._fresh:
            self._logprobs.note(self._sequence)
        return text

    def _deliver(self, token: int) -> int:
        ends = self._model.is_end(token)
        self._meter.reason = "stop" if ends else ""
        if not ends:
            self.tokens.append(token)
            self._meter.generated_tokens += 1
        if self._logprobs is not None:
            self._logprobs.take(token)
        return token

    def _accept(self, token: int) -> str:
        self._fresh.append(token)
        return ""


class LoopRun:
    """The measurement of a generation by llama_cpp's own loop."""

    def __init__(
        self,
        setting: Setting,
        experts: _core.Experts | None,
        n_prompt: int,
        is_end: Callable[[int], bool],
        logprobs: Logprobs | None = None,
    ) -> None:
        self._setting, self._experts, self._is_end, self._logprobs = setting, experts, is_end, logprobs
        self._meter = Meter(prompt_tokens=n_prompt)
        self._before = experts.stats if experts is not None else {}
        self.n_evaluated = 0
        """The number of tokens that were evaluated so far; the code that evaluates them counts them."""

    def measure(self, tokens: Tokens, prepare: Callable[[], object]) -> Tokens:
        """Yield `tokens` as they come, and measure the time that each takes. Call `prepare` before each."""
        meter, sent = self._meter, None
        try:
            while True:
                started = time.perf_counter()
                prepare()
                try:
                    token = tokens.send(sent)
                except StopIteration:
                    return
                elapsed = time.perf_counter() - started
                if fault := _core.take_grammar_fault():
                    raise InputError(fault)
                if meter.first_tokens:
                    meter.decode_s += elapsed
                    meter.steps += 1
                    meter.step_tokens += 1
                else:
                    meter.prefill_s = meter.first_token_s = elapsed
                    meter.prefilled_tokens, meter.first_tokens = self.n_evaluated, 1
                meter.generated_tokens += not self._is_end(token)
                if self._logprobs is not None:
                    self._logprobs.take(token)
                sent = yield token
        finally:
            tokens.close()

    @property
    def stats(self) -> RunStats:
        """The statistics so far."""
        if self._experts is not None:
            now = self._experts.stats
            self._meter.experts = {name: value - self._before[name] for name, value in now.items()}
            self._meter.prompt_experts = self._meter.experts  # Only prompts use prefill streaming.
            self._meter.resident = self._experts.slots.n_resident
        return RunStats.of(self._setting.with_memory(in_use), self._meter)


def plain_setting(target: str, device: str, threads: int, context: int, seed: int, temp: float) -> Setting:
    """Return the setting of plain llama.cpp, without a draft and without split experts."""
    return Setting(
        target=target,
        draft=None,
        device=device,
        device_is_simulated=False,
        scheduler="none",
        draft_types=(),
        draft_length=0,
        threads=threads,
        context=context,
        seed=seed,
        temp=temp,
        n_experts=0,
        slots=0,
        slot_bytes=0,
        load_s=0.0,
    )
