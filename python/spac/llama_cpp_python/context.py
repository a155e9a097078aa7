"""The context of a `spac.Llama`, which has one user at a time: llama.cpp's loop, or llama_cpp's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama import LlamaState

from spac import _core
from spac.llama_cpp_python.generation import LoopRun, TokenRun
from spac.llama_cpp_python.loaded import EXACT, LoadedLlama
from spac.llama_cpp_python.several import refuse_alone
from spac.scheduler import Event


class ContextLlama(LoadedLlama):
    """Gives the context to the loop and takes it back, and has llama_cpp's functions on it."""

    @property
    def ctx(self) -> Any:
        """The llama_context, which holds the tokens of `input_ids`."""
        if self._engine is not None and self._threads is None and self._ctx.ctx is not None:
            with self._calls.call():
                self._use_context()
        return self._ctx.ctx

    @property
    def _owns_context(self) -> bool:
        """True if llama_cpp's functions have the context."""
        # Others may have begun a text with the engine.
        return self._engine is None or self._owned_since == self._engine.events.n_text

    def _use_context(self, *, keeps: bool = True) -> None:
        """Take the context for llama_cpp's functions, and evaluate what `input_ids` says.

        Without `keeps`, the context is empty afterwards if the loop had it.
        """
        if self._owns_context:
            return
        assert self._engine is not None
        self._n_generations += 1  # A generation under way continues what this leaves in the context.
        self._leave_run()
        self._engine.forget()
        self._clear()
        llama_cpp.llama_set_embeddings(self._ctx.ctx, self.context_params.embeddings)  # The loop changes it.
        self._owned_since, self._overflowed = self._engine.events.n_text, False
        held = self._input_ids.tolist() if keeps else []
        self.n_tokens = self._n_described = 0
        if held and min(held) >= 0:  # There is nothing to evaluate for tokens of images.
            self._evaluate(held)

    def _give_context(self) -> None:
        """Give the context to llama.cpp's loop."""
        self._leave_run()
        if self._owns_context:
            self._clear()
        self._owned_since, self._overflowed = None, False

    def _leave_run(self) -> None:
        """Let the last generation leave llama.cpp's loop."""
        if isinstance(self._run, TokenRun):
            self._run.leave()

    def _clear(self) -> None:
        if self._ctx.memory is not None:
            llama_cpp.llama_memory_clear(self._ctx.memory, True)

    def _take_back(self) -> None:
        """Take the context back to `n_tokens`. If its memory cannot go back, evaluate the tokens again."""
        n, memory = self.n_tokens, self._ctx.memory
        if memory is None or not 0 < n <= self._n_described:
            return
        if self._is_recurrent or self._is_hybrid:
            has_state = llama_cpp.llama_memory_seq_pos_max(memory, 0) < n
            if has_state or llama_cpp.llama_memory_seq_rm(memory, 0, n, -1):
                return
        elif window := llama_cpp.llama_model_n_swa(self.model):
            if 0 <= llama_cpp.llama_memory_seq_pos_min(memory, 0) <= max(0, n - window):
                return
        else:
            return
        self._clear()
        held = self._input_ids.tolist()
        self.n_tokens = 0
        super().eval(held)

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate `tokens` as llama_cpp does.

        Tokens that are decoded one at a time count as demand for experts. With a `draft_model`, so do batches
        that follow other tokens in the context.
        """
        self._check_open()
        if self._threads is not None:
            refuse_alone("eval")
        with self._calls.call():
            self._n_generations += 1  # A generation under way continues what this leaves in the context.
            self._use_context()
            self._count_and_evaluate(tokens)

    def sample(self, *args: Any, **keywords: Any) -> int:
        """Sample a token as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("sample")
        with self._calls.call():
            self._use_context()
            return int(super().sample(*args, **keywords))

    def _count_and_evaluate(self, tokens: Sequence[int]) -> None:
        if isinstance(self._run, LoopRun):
            self._run.n_evaluated += len(tokens)
        experts = self._engine.experts if self._engine is not None else None
        if experts is None or not (len(tokens) == 1 or (self.draft_model is not None and self.n_tokens)):
            self._evaluate(tokens)
            return
        experts.set_counting(True)
        try:
            self._evaluate(tokens)
        finally:
            experts.set_counting(False)
            demand, _graphs = experts.take_demand()
        if self._engine is not None and self._engine.events.driver is not None:
            self._engine.events.driver.raised(Event.VERIFY_END, demand, n_verified=len(tokens))

    def _evaluate(self, tokens: Sequence[int]) -> None:
        self._take_back()
        is_described = self.n_tokens <= self._n_described
        try:
            super().eval(tokens)
        finally:
            if is_described:
                self._n_described = self.n_tokens
            self._check_servers()
        if len(tokens) and (logits := llama_cpp.llama_get_logits_ith(self._ctx.ctx, -1)):
            total = np.ctypeslib.as_array(logits, (self._n_vocab,)).sum()
            self._overflowed = self._overflowed or bool(np.isnan(total) or total == np.inf)

    def _drop_overflow(self) -> None:
        """Clear the context and its data if its numbers are not finite: masked ones spoil later results."""
        if not self._overflowed:
            return
        self._overflowed, self.n_tokens = False, 0
        self._clear()

    def reset(self) -> None:
        """Forget the tokens of the context, as llama_cpp does."""
        if self._threads is not None:
            self.n_tokens = 0
            return
        with self._calls.call():
            self._use_context(keeps=False)  # Chat handlers clear the context's memory after this.
            self._drop_overflow()
            super().reset()

    def embed(self, *args: Any, **keywords: Any) -> Any:
        """Return embeddings as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("embed")
        with self._calls.call():
            self._use_context(keeps=False)
            try:
                return super().embed(*args, **keywords)
            finally:
                self._check_servers()

    def _check_servers(self) -> None:
        """Raise DeviceError if an RPC server is lost. llama_cpp's results are void then."""
        if self._own.get("rpc") or (EXACT in self._own and self._own[EXACT].rpc):
            _core.synchronize(self._ctx.ctx)

    def save_state(self) -> Any:
        """Return a copy of the context's state.

        If llama.cpp's loop has the context, the state has the tokens alone. `spac.Llama` loads such a state
        and evaluates the tokens when it needs them.
        """
        self._check_open()
        if self._threads is not None:
            refuse_alone("save_state")
        with self._calls.call():
            if not self._owns_context:
                return LlamaState(
                    input_ids=self.input_ids.copy(), scores=self.scores[:0].copy(), n_tokens=self.n_tokens,
                    llama_state=b"", llama_state_size=self.input_ids.nbytes, seed=self._seed,
                )  # fmt: skip
            state = super().save_state()
            state.overflowed, state.n_described = self._overflowed, self._n_described
            return state

    def load_state(self, state: Any) -> None:
        """Restore a state of the context, as llama_cpp does."""
        self._check_open()
        if self._threads is not None:
            refuse_alone("load_state")
        with self._calls.call():
            self._n_generations += 1
            if not state.llama_state:
                self._load_tokens(state)
                return
            self._use_context(keeps=False)
            self._drop_overflow()
            super().load_state(state)
            self._overflowed = getattr(state, "overflowed", False)
            self._n_described = getattr(state, "n_described", self.n_tokens)

    def _load_tokens(self, state: Any) -> None:
        """Restore a state of tokens alone."""
        self._drop_overflow()
        self.input_ids, self._seed = state.input_ids.copy(), state.seed
        self.n_tokens, self._requires_eval = state.n_tokens, True
        if self._engine is not None:
            self._give_context()
            return
        held = self._input_ids.tolist()
        self.reset()
        self._evaluate(held)
