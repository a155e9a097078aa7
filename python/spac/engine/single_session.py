"""The session of an engine that runs one generation at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine.expert_cache import ExpertCache
from spac.engine.prompt_cache import cache_parameters
from spac.engine.prompt_progress import PIECE, PromptProgress
from spac.model.pair import ModelPair


def seeded(sampling: SamplingConfig) -> SamplingConfig:
    """Return the sampling with a seed, which is random if there is none."""
    if sampling.seed not in (None, -1):
        return sampling
    return replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))


def parameters_of(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the sampling as parameters of `_core.Session.set_sampling`."""
    return {item.name: getattr(sampling, item.name) for item in fields(sampling)}


class SingleSession:
    """A session that is opened when it is first needed, and that changes its sampling."""

    def __init__(
        self,
        config: EngineConfig,
        pair: ModelPair,
        expert_cache: ExpertCache,
        trace: _core.Trace,
        reading: PromptProgress,
        opened: Callable[[_core.Session], object],
    ) -> None:
        """Take over the models' contexts. `opened` receives the session when there is one."""
        self._config, self._pair, self._expert_cache, self._trace = config, pair, expert_cache, trace
        self._reading, self._opened = reading, opened
        self._sampling: SamplingConfig | None = None
        self.session: _core.Session | None = None
        """The session; None before the first generation."""

    def close(self) -> None:
        """Free the session. A second call does nothing."""
        if self.session is not None:
            self.session.close()
        self.session = None

    def sampling(
        self, sampling: SamplingConfig, chat: _core.ChatPrompt | None, reasoning_budget: int
    ) -> tuple[_core.Session, SamplingConfig]:
        """Return the session, set to this sampling, and the sampling with its seed.

        If the session samples like this already, it is returned unchanged.
        """
        sampling = seeded(sampling)
        if self.session is not None and sampling == self._sampling and chat is None:
            return self.session, sampling
        session = self.with_parameters(
            {**parameters_of(sampling), "chat": chat, "reasoning_budget": reasoning_budget}
        )
        self._sampling = sampling if chat is None else None
        return session, sampling

    def with_parameters(self, parameters: Mapping[str, Any]) -> _core.Session:
        """Return the session, which samples with these parameters from its next prefill on.

        Parameters and errors are those of `_core.Session.set_sampling`.
        """
        self._sampling = None
        self._expert_cache.update_streams()
        if self.session is None:
            self.session = self._open(parameters)
        else:
            self.session.set_sampling(**parameters)
        return self.session

    def _open(self, parameters: Mapping[str, Any]) -> _core.Session:
        config, pair = self._config, self._pair
        session = _core.Session(
            pair.target_context.pointer,
            pair.draft_context.pointer if pair.draft_context is not None else None,
            pair.experts,
            draft_types=list(config.draft_types),
            draft_max=config.longest_draft,
            draft_min=config.draft_min,
            p_min=config.draft_p_min,
            trace=self._trace,
            draft_experts=pair.draft_experts,
            projector=pair.projector,
            **cache_parameters(config, pair),
            **parameters,
        )
        self._opened(session)
        session.on("prompt_graph", self._choose_graph)
        return session

    def _choose_graph(self, n_pending: int, n_failed: int) -> int:
        """Return the tokens of the prompt's next graph; 0 for the context's own."""
        graphs = self._expert_cache.graphs
        size = graphs.choose(n_pending, n_failed) if graphs is not None else 0
        if graphs is not None and size > graphs.small:
            self._reading.expect(n_pending, size, graphs.graph_s)
        else:
            self._reading.expect(n_pending, PIECE)
        return size
