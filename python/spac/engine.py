"""The engine: a target, an optional draft, a device and a scheduler, ready to generate.

Example:
    with Engine(EngineConfig(target="model.gguf", draft="draft.gguf")) as engine:
        for piece in engine.generate("def fibonacci(n):", max_tokens=100):
            print(piece, end="", flush=True)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from spac import _core
from spac._llama import TokenArray, take_notices
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.errors import OutOfMemoryError
from spac.generation import Generation, as_tokens
from spac.pair import LoadProgress, ModelPair
from spac.scheduler import Event, Scheduler, make
from spac.scheduler.driver import Driver
from spac.stats import Setting

STAND_IN_SHARE = 0.25  # of the experts, by default: on the stand-in, slots are there to show the split
MARGIN_SHARE = 0.05  # of the device's memory that auto leaves free
MARGIN_LEAST = 256 << 20  # on a real device, whose libraries allocate when they are first used


class Engine:
    """A model pair with slots, a scheduler and a session. One generation at a time."""

    def __init__(self, config: EngineConfig, *, progress: LoadProgress | None = None) -> None:
        """Loads everything. Raises InputError, OutOfMemoryError or SpacError with one line."""
        started = perf_counter()
        self.config = config
        self._generation: Generation | None = None
        self.session: _core.Session | None = None
        """The session at work, for hooks of one's own (`session.on`); None before the first generation."""
        self._sampling: SamplingConfig | None = None
        self._pair = ModelPair(config, progress)
        self.device = self._pair.device
        """The device that holds the slots; None where plain llama.cpp runs on the CPU."""
        self.experts = self._pair.experts
        """The target's experts; None where there is nothing to split."""
        self._notes = self._pair.notes
        try:
            self._driver = self._attach()
        except BaseException:
            self.close()
            raise
        self._load_s = perf_counter() - started

    def close(self) -> None:
        """Free everything, in order. The engine cannot be used afterwards; calling it again does nothing."""
        if self._generation is not None:
            self._generation.retire()
        if self.session is not None:
            self.session.close()
        self._generation = self.session = self._driver = self.experts = None
        self._pair.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def notes(self) -> list[str]:
        """What a user should know about how this engine runs, one line each; there may be more later."""
        self._notes += take_notices()
        return self._notes

    # Slots and the scheduler

    def _attach(self) -> Driver | None:
        """Attach the slots and start the scheduler; None when no expert can be resident."""
        if self.experts is None:
            return None
        scheduler = self.config.scheduler
        if not isinstance(scheduler, Scheduler):
            scheduler = make(scheduler, **self.config.scheduler_options)
        self._scheduler_name = scheduler.name
        if scheduler.name == "none":
            return None
        slots = Slots.parse(self.config.slots)
        if slots.is_auto:
            self._attach_what_fits(self.experts)
        else:
            self._attach_exactly(self.experts, slots.of(self.n_experts))
        if self.experts.slots.n_slots == 0:
            return None
        driver = Driver(scheduler, self.experts)
        driver.start()
        return driver

    def _attach_exactly(self, experts: _core.Experts, n_slots: int) -> None:
        try:
            if n_slots:
                experts.attach_slots(n_slots)
        except OutOfMemoryError:
            fit = experts.slots_that_fit(0)
            raise OutOfMemoryError(
                f"{n_slots} slots do not fit into the memory of {self._device_name}: {fit} would; "
                f"give --slots {fit} or --slots auto"
            ) from None

    def _attach_what_fits(self, experts: _core.Experts) -> None:
        assert self.device is not None
        margin, wanted = int(self.device.memory_total * MARGIN_SHARE), self.n_experts
        if self.device.is_stand_in:
            wanted = max(1, round(wanted * STAND_IN_SHARE))
        else:
            margin = max(margin, MARGIN_LEAST)
        n_slots = min(wanted, experts.slots_that_fit(margin))
        while n_slots:
            try:
                experts.attach_slots(n_slots)
                break
            except OutOfMemoryError:
                n_slots = n_slots * 3 // 4  # memory may be too fragmented for what its sum promised
        if n_slots < wanted:
            self._notes.append(
                f"slots: {n_slots} of {self.n_experts} experts fit into the memory of {self._device_name}"
            )

    @property
    def n_experts(self) -> int:
        """Experts of the target, all layers together."""
        return sum(layer.n_expert for layer in self.experts.layers) if self.experts is not None else 0

    # Generating

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
    ) -> Generation:
        """Text that continues `prompt`, as an iterator of pieces; its `stats` and `reason` tell how it went.

        It ends with the model's end token, a `stop` string (not part of the text), `max_tokens`, or a full
        context. A generation that still runs is ended: an engine has one at a time.
        Raises InputError when the prompt is empty or does not fit.
        """
        tokens = as_tokens(self._pair.target, prompt)
        if self._generation is not None:
            self._generation.retire()
        session, sampling = self._session_for(sampling or self.config.sampling)
        setting = self._setting(sampling)
        self._generation = Generation(
            self._pair.target, session, self.experts, setting, tokens, max_tokens, stop
        )
        return self._generation

    def _session_for(self, sampling: SamplingConfig) -> tuple[_core.Session, SamplingConfig]:
        """The session that samples like this: the last one, with what its memory holds, where it does."""
        if sampling.seed in (None, -1):
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))
        if self.session is not None and sampling == self._sampling:
            return self.session, sampling
        if self.session is not None:
            self.session.close()
        pair = self._pair
        options: dict[str, Any] = {item.name: getattr(sampling, item.name) for item in fields(sampling)}
        session = _core.Session(
            pair.target_context.address,
            pair.draft_context.address if pair.draft_context is not None else None,
            self.experts,
            draft_types=list(self.config.draft_types),
            draft_max=self.config.draft_length,
            draft_min=self.config.draft_min,
            p_min=self.config.draft_p_min,
            **options,
        )
        if self._driver is not None:
            self._subscribe(session, self._driver)
        self.session, self._sampling = session, sampling
        return session, sampling

    @staticmethod
    def _subscribe(session: _core.Session, driver: Driver) -> None:
        """Have the events that the scheduler wants raised; the others cost nothing."""

        def draft_token(event: _core.DraftToken) -> None:
            driver.raised(Event.DRAFT_TOKEN, n_drafted=event.index + 1)

        def draft_end(event: _core.DraftEnd) -> None:
            driver.raised(Event.DRAFT_END, n_drafted=len(event.tokens))

        def verify_end(step: _core.Step) -> None:
            driver.raised(
                Event.VERIFY_END,
                step.demand,
                n_drafted=step.n_drafted,
                n_verified=step.n_verified,
                n_accepted=step.n_accepted,
            )

        for callback in (draft_token, draft_end, verify_end):
            if Event(callback.__name__) in driver.scheduler.events:
                session.on(callback.__name__, callback)

    @property
    def _device_name(self) -> str:
        return self.device.name if self.device is not None else "cpu"

    def _setting(self, sampling: SamplingConfig) -> Setting:
        config, slots = self.config, self.experts.slots if self.experts is not None else None
        return Setting(
            target=str(config.target),
            draft=str(config.draft) if self._pair.draft is not None else None,
            device=self._device_name,
            device_is_stand_in=self.device is not None and self.device.is_stand_in,
            scheduler=self._scheduler_name if self.experts is not None else "none",
            draft_types=config.draft_types,
            draft_length=config.draft_length if config.draft_types else 0,
            threads=self._pair.threads,
            context=self._pair.target_context.size,
            seed=sampling.seed or 0,
            temp=sampling.temp,
            n_experts=self.n_experts,
            slots=slots.n_slots if slots is not None else 0,
            slot_bytes=slots.bytes if slots is not None else 0,
            load_s=self._load_s,
        )
