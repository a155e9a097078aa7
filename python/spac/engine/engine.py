"""The engine: a target, an optional draft, a device and a scheduler, ready to generate.

Example:
    with Engine(EngineConfig(target="model.gguf", draft="draft.gguf")) as engine:
        for piece in engine.generate("def fibonacci(n):", max_tokens=100):
            print(piece, end="", flush=True)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.costs.estimator import CostEstimator
from spac.engine.expert_cache import Residence
from spac.engine.generation import Generation, as_tokens
from spac.engine.prompt_cache import cache_parameters
from spac.engine.run_files import RunFiles
from spac.engine.session_events import Events
from spac.errors import InputError
from spac.governor import FixedGovernor, Governor, Pace, RooflineGovernor
from spac.model.c_api import Model, TokenArray, take_notices
from spac.model.pair import LoadProgress, ModelPair
from spac.scheduler import Scheduler
from spac.stats import Setting
from spac.stats.advice import unused_draft
from spac.stats.prediction import Insight
from spac.stats.recording import Recorder


class Engine:
    """A model pair with slots, a scheduler and a session. One generation at a time."""

    def __init__(
        self, config: EngineConfig, *, progress: LoadProgress | None = None, pair: ModelPair | None = None
    ) -> None:
        """Loads everything; `pair` is what has been loaded already, and belongs to the engine from now on.

        Raises InputError, OutOfMemoryError or SpacError with one line.
        """
        started = perf_counter()
        self.config = config
        self._generation: Generation | None = None
        self._advised = False
        self.session: _core.Session | None = None
        """The session at work, for hooks of one's own (`session.on`); None before the first generation."""
        self._sampling: SamplingConfig | None = None
        try:
            self._files = RunFiles(config)
        except BaseException:
            if pair is not None:
                pair.close()
            raise
        self._pair = pair if pair is not None else ModelPair(config, progress, all_rows=False)
        self.device = self._pair.device
        """The device that holds the slots; None where plain llama.cpp runs on the CPU."""
        self.experts = self._pair.experts
        """The target's experts; None where there is nothing to split."""
        self._notes = self._pair.notes
        self.events = Events(None)
        """What the session's events do; others may listen too."""
        self._residence: Residence | None = None
        self._governor: Governor | None = None
        try:
            self._residence = residence = Residence(config, self._pair, self._notes)
            if residence.costs is not None:
                self.events.after_step.append(residence.costs.observe)
            self._governor = self._own_governor = self._choose_governor(residence)
            self.events.settled = self.experts if config.deterministic else None
            self.events.driver = driver = residence.attach(config.scheduler, config.scheduler_options)
            residence.update_streams()
            if residence.stream_note:
                self._notes.append(residence.stream_note)
            self._trace = self.experts.trace if self.experts is not None else _core.Trace()
            self._notes += self._files.begin(driver, residence.scheduler_options, self._trace)
            self.events.timeline = self._files.timeline
        except BaseException:
            self.close()
            raise
        self._load_s = perf_counter() - started

    def save(self) -> None:
        """End the timeline and save the warm state, once, where the configuration names files for them.

        Closing does it too. Raises InputError, one line, when a file cannot be written.
        """
        self.events.timeline = None
        about = {"target": Path(self.config.target).name}
        options: Mapping[str, Any] = {}
        if (residence := self._residence) is not None:
            about |= {"device": residence.device_name, "scheduler": residence.scheduler_name}
            options = residence.scheduler_options
        self._notes += self._files.end(self.events.driver, options, about)

    def close(self) -> None:
        """Free everything, in order. The engine cannot be used afterwards; calling it again does nothing."""
        try:
            self.save()
        finally:
            self._free()

    def _free(self) -> None:
        if self._generation is not None:
            self._generation.retire()
        if self.session is not None:
            self.session.close()
        if self._residence is not None:
            self._residence.close()
        self._generation = self.session = self.experts = None
        self.events = Events(None)
        self._pair.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if _type is not None:  # which says more than a file that cannot be written on top of it
            with suppress(InputError):
                self.save()
        self.close()

    @property
    def notes(self) -> list[str]:
        """What a user should know about how this engine runs, one line each; there may be more later."""
        self._notes += take_notices()
        if not self._advised and (advice := self._advice()):
            self._advised = True
            self._notes.append(advice)
        return self._notes

    def _advice(self) -> str:
        """What the last generation showed of the draft; "" for nothing, and on the stand-in."""
        draft, device, generation = self._pair.draft, self.device, self._generation
        if draft is None or device is None or device.is_stand_in:
            return ""
        if generation is None or self.experts is None:
            return ""
        slots = self.experts.slots
        lengths = generation.stats.draft_lengths
        return unused_draft(lengths, draft.n_bytes, self._mean_expert_bytes, slots.n_slots, self.n_experts)

    @property
    def _at_home(self) -> Residence:
        assert self._residence is not None  # it is there once the engine is
        return self._residence

    @property
    def costs(self) -> CostEstimator | None:
        """What things cost here, kept true by every step; None where there is nothing to split."""
        return self._residence.estimator if self._residence is not None else None

    def _choose_governor(self, residence: Residence) -> Governor | None:
        """What chooses the draft length; None without speculation."""
        config = self.config
        if not config.draft_types:
            return None
        if not config.is_governed:
            return FixedGovernor(config.longest_draft)
        experts, costs = self.experts, residence.costs
        return RooflineGovernor(
            config.longest_draft,
            shortest=config.draft_min,
            budget_s=None if config.latency_budget is None else config.latency_budget / 1e3,
            costs=costs.estimator.costs if costs is not None and costs.measured else None,
            resident=None if experts is None else lambda: experts.residency() >= 0,
        )

    @property
    def governor(self) -> Governor | None:
        """What chooses the draft length; None without speculation."""
        return self._governor

    def fix_draft_length(self, n: int | None) -> None:
        """Draft n tokens from the next generation on, whatever the configuration says; None: what it says.

        Raises InputError beyond 0 to the longest draft that the engine was made for.
        """
        longest = self.config.longest_draft if self.config.draft_types else 0
        if n is None:
            self._governor = self._own_governor
        elif 0 <= n <= longest:
            self._governor = FixedGovernor(n) if longest else None
        else:
            raise InputError(f"draft length {n}: 0 to {longest} here")

    def pace(self, session: _core.Session) -> Pace | None:
        """For the steps of one generation by `session`; None without speculation."""
        return Pace(self._governor, session, self.events.timeline) if self._governor is not None else None

    def set_scheduler(self, scheduler: str | Scheduler) -> None:
        """Another scheduler from the next step on. What is resident stays until it decides otherwise; with
        "none" it stays for good. Raises InputError for an unknown name and where there is nothing to split.
        """
        if self.experts is None:
            raise InputError(f"scheduler: {Path(self.config.target).name} runs without the split")
        self.events.driver = self._at_home.attach(scheduler, {})
        if self.session is not None:
            self.events.subscribe(self.session)

    @property
    def n_experts(self) -> int:
        """Experts of the target, all layers together."""
        return sum(layer.n_expert for layer in self.experts.layers) if self.experts is not None else 0

    @property
    def _mean_expert_bytes(self) -> int:
        layers = self.experts.layers if self.experts is not None else []
        return sum(layer.n_expert * layer.expert_bytes for layer in layers) // max(1, self.n_experts)

    # Generating

    @property
    def target(self) -> Model:
        """The target, for its vocabulary and its chat template."""
        return self._pair.target

    @property
    def context(self) -> int:
        """Tokens that the context holds."""
        return self._pair.target_context.size

    def tokenize(self, text: str) -> TokenArray:
        """int32 tokens of `text`."""
        return self._pair.target.tokenize(text)

    def generate(
        self,
        prompt: str | Sequence[int] | TokenArray,
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        sampling: SamplingConfig | None = None,
        recorder: Recorder | None = None,
        progress: Callable[[int, int], object] | None = None,
        chat: _core.ChatPrompt | None = None,
        reasoning_budget: int = -1,
    ) -> Generation:
        """Text that continues `prompt`, as an iterator of pieces; its `stats` and `reason` tell how it went.

        It ends with the model's end token, a `stop` string (not part of the text), `max_tokens`, or a full
        context. A generation that still runs is ended: an engine has one at a time. A `recorder` notes what
        every step did. `progress(n_done, n_total)` hears how much of the prompt has been read, in pieces of
        the configuration's `batch` tokens. `chat`: what the prompt is the text of, whose format the answer
        follows, with `reasoning_budget` tokens of reasoning at most (-1: no limit); the text is then one that
        `chat.read` understands. Raises InputError when the prompt is empty or does not fit.
        """
        tokens = as_tokens(self._pair.target, prompt)
        if self._generation is not None:
            self._generation.retire()
        self.events.settle()
        self._at_home.update_streams()
        session, sampling = self._session_for(sampling or self.config.sampling, chat, reasoning_budget)
        setting = self.setting(sampling)
        self.events.insight = insight = Insight()
        self._generation = Generation(
            self._pair.target, session, self.experts, setting, tokens, max_tokens, stop,
            insight=insight, recorder=recorder, pace=self.pace(session), progress=progress,
            preserved=frozenset(chat.preserved_tokens) if chat is not None else (),
        )  # fmt: skip
        if recorder is not None:
            recorder.watch(self.events, self.governor)
        return self._generation

    def _session_for(
        self, sampling: SamplingConfig, chat: _core.ChatPrompt | None, reasoning_budget: int
    ) -> tuple[_core.Session, SamplingConfig]:
        """The session that samples like this: the last one, with what its memory holds, where it does."""
        if sampling.seed in (None, -1):
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))
        if self.session is not None and sampling == self._sampling and chat is None:
            return self.session, sampling
        named = {item.name: getattr(sampling, item.name) for item in fields(sampling)}
        session = self.session_with(**named, chat=chat, reasoning_budget=reasoning_budget)
        self._sampling = sampling if chat is None else None
        return session, sampling

    def session_with(self, **sampling: Any) -> _core.Session:
        """The session, which samples like this from its next prefill on; opened when there is none yet.

        Parameters and errors are those of `_core.Session.set_sampling`.
        """
        self._sampling = None
        self._at_home.update_streams()
        if self.session is not None:
            self.session.set_sampling(**sampling)
            return self.session
        pair = self._pair
        session = _core.Session(
            pair.target_context.address,
            pair.draft_context.address if pair.draft_context is not None else None,
            self.experts,
            draft_types=list(self.config.draft_types),
            draft_max=self.config.longest_draft,
            draft_min=self.config.draft_min,
            p_min=self.config.draft_p_min,
            trace=self._trace,
            draft_experts=self._pair.draft_experts,
            **cache_parameters(self.config, pair),
            **sampling,
        )
        self.events.subscribe(session)
        self.session = session
        return session

    def setting(self, sampling: SamplingConfig) -> Setting:
        """What runs, for the statistics of a generation that samples like this."""
        config, slots = self.config, self.experts.slots if self.experts is not None else None
        residence = self._at_home
        return Setting(
            target=str(config.target),
            draft=str(config.draft) if self._pair.draft is not None else None,
            device=residence.device_name,
            device_is_stand_in=self.device is not None and self.device.is_stand_in,
            scheduler=residence.scheduler_name,
            draft_types=config.draft_types,
            draft_length=config.longest_draft if config.draft_types else 0,
            governor=self._governor.name if self._governor is not None else "none",
            expert_bytes=self._mean_expert_bytes,
            paged=self._pair.paged,
            pinned_bytes=self.experts.host_bytes.pinned if self.experts is not None else 0,
            pageable_bytes=self.experts.host_bytes.pageable if self.experts is not None else 0,
            stream_batch=residence.stream_batch,
            lookahead=residence.lookahead,
            threads=self._pair.threads,
            context=self._pair.target_context.size,
            seed=sampling.seed or 0,
            temp=sampling.temp,
            n_experts=self.n_experts,
            slots=slots.n_slots if slots is not None else 0,
            slot_bytes=slots.bytes if slots is not None else 0,
            vram_limit=(self.device.memory.limit or None) if self.device is not None else None,
            scheduler_options=residence.scheduler_options,
            load_s=self._load_s,
        )
