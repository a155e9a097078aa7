"""The measurement of candidates in turns, which affects all alike when the machine grows slower.

Candidates share models where that fits and changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spac.bench.candidates import Candidate
from spac.cli.program import Talk
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import OutOfMemoryError
from spac.machine.cpu import default_threads, physical_cores
from spac.machine.host_memory import available
from spac.model.devices import choose_device
from spac.model.pair import LoadProgress, ModelPair

if TYPE_CHECKING:
    from spac.engine.generation import Generation
    from spac.stats import RunStats

Key = tuple[bool, bool]
"""Two flags: the pair is for the CPU alone, and it has the draft model."""


class SharedPair(ModelPair):
    """A pair whose models stay loaded when its engine closes; the contexts are that engine's own."""

    def __init__(self, owner: ModelPair, config: EngineConfig) -> None:
        """Make contexts on the models of `owner`, for an engine that has this configuration.

        Raise OutOfMemoryError or SpacError, with one line.
        """
        self._loader, self._closing, self._all_rows = None, ExitStack(), False
        self.placement = place = copy(owner.placement)
        place.config, place.notes = config, []
        self.notes = place.notes
        self.experts, self.target = owner.experts, owner.target
        self.draft = owner.draft if config.draft_types else None
        self.draft_experts = owner.draft_experts if config.draft_types else None
        try:
            self._new_pool()
            with self._room_for_prompts(self.experts):
                self._open_target_context()
                self._open_draft_context()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the contexts. The models and the connections stay."""
        self._free()


class Pairs:
    """The pairs of all candidates; two stay loaded together only where memory has room for both."""

    def __init__(
        self,
        base: EngineConfig,
        candidates: Sequence[Candidate],
        file_size: int,
        progress: LoadProgress | None,
    ) -> None:
        """Choose the device and the number of threads; load nothing yet.

        `file_size` is the size of the target and the draft in bytes. Raise InputError for an unknown device.

        All candidates compute with the same number of CPU threads, and so does the CPU alone. Where no number
        is given, it is the default beside the device. The default of the CPU alone would be larger, and
        ratios would compare threads.
        """
        self._candidates, self._progress = candidates, progress
        self._file_size = file_size
        device = choose_device(base.device)
        self.shares_cores = device is not None and device.shares_host_cores
        """True if the device computes on the CPU's cores."""
        self._shares_memory = device is not None and device.shares_host_memory
        on_gpu = device is not None and not self.shares_cores
        threads = default_threads(physical_cores(), gpu=on_gpu, shares_cores=self.shares_cores)
        self.base = replace(base, threads=base.threads or threads)
        """The settings that all candidates share."""
        self._loaded: dict[Key, ModelPair] = {}

    def share(self, candidate: Candidate) -> SharedPair:
        """Return models and new contexts for an engine of this candidate; no expert is resident.

        Raise the errors of loading. The notes about a pair come with its first use.
        """
        key = self._key(candidate)
        notes = []
        if key not in self._loaded:
            self._make_room(key)
            notes = self._load(key).notes
        owner = self._loaded[key]
        if owner.experts is not None:
            owner.experts.attach_slots(0)
        pair = SharedPair(owner, candidate.config(self.base))
        pair.notes += notes
        return pair

    def close(self) -> None:
        """Free all models."""
        while self._loaded:
            self._loaded.popitem()[1].close()

    def _key(self, candidate: Candidate) -> Key:
        if candidate.device == "cpu":
            return True, True
        # The number of slots that fit depends on the models that are loaded.
        counts_memory = candidate.slots.is_auto and not self._shares_memory
        return False, bool(candidate.config(self.base).draft_types) or not counts_memory

    def _load(self, key: Key) -> ModelPair:
        configs = [each.config(self.base) for each in self._candidates if self._key(each) == key]
        self._loaded[key] = pair = ModelPair(
            max(configs, key=lambda each: each.longest_draft if each.draft_types else 0),
            self._progress,
            all_rows=False,
        )
        # The graphs of a context keep the slots of their time. So every engine gets its own contexts.
        for context in (pair.draft_context, pair.target_context):
            if context is not None:
                context.close()
        return pair

    def _make_room(self, key: Key) -> None:
        """Close the pairs that cannot stay beside the pair of `key`.

        Only one stays on the device, because the slots that fit are counted on a free device.
        """
        for other in list(self._loaded):
            on_device = not (key[0] or other[0])
            # llama.cpp may make a second copy of the weights in another layout, beside the mapping.
            if on_device or available() < 2 * self._file_size:
                self._loaded.pop(other).close()


@dataclass(frozen=True)
class Sample:
    """A candidate's turn in one round, in which it continues every prompt once."""

    round: int
    runs: list[RunStats]
    texts: list[str]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed over all prompts together in tokens/s, or None when nothing was generated."""
        seconds = sum(run.decode_s for run in self.runs)
        return sum(run.generated_tokens for run in self.runs) / seconds if seconds else None

    @property
    def first_token_s(self) -> float | None:
        """The mean time to the first token over the prompts, in seconds.

        Each prompt is evaluated from its beginning.
        """
        times = [run.time_to_first_token_s for run in self.runs if run.time_to_first_token_s is not None]
        return sum(times) / len(times) if times else None


@dataclass
class Measurement:
    """A measurement of candidates; `samples` has the results so far, also after an interrupt."""

    base: EngineConfig
    candidates: Sequence[Candidate]
    prompts: Sequence[str]
    max_tokens: int | None
    repeat: int
    talk: Talk
    samples: dict[Candidate, list[Sample]] = field(default_factory=dict)
    left_out: dict[Candidate, str] = field(default_factory=dict)
    """The candidates whose slots do not fit into memory, with the error's message."""
    _generation: Generation | None = None
    _at_work: bool = False
    _stopped: bool = False
    _noted: set[str] = field(default_factory=set)

    def run(self, pairs: Pairs) -> None:
        """Measure all candidates.

        Raise InputError for unusable prompts, and OutOfMemoryError when the models or all candidates' slots
        do not fit. Raise KeyboardInterrupt after a cancellation.
        """
        n_turns = self.repeat * len(self.candidates)
        for turn in range(n_turns):
            at, place = divmod(turn, len(self.candidates))
            # Every other round runs backwards: a steady drift affects all alike, and a loaded pair stays.
            candidate = self.candidates[place if at % 2 == 0 else -1 - place]
            if candidate in self.left_out:
                continue
            self.talk.show(f"{_bar(turn, n_turns)} {turn + 1}/{n_turns} {candidate.label}")
            pair = pairs.share(candidate)
            self._at_work = True
            try:
                self.samples.setdefault(candidate, []).append(self._turn(pair, candidate, at))
            except OutOfMemoryError as error:
                self._leave_out(candidate, error)
            finally:
                self._at_work = False
            if self._stopped:  # The cancellation came while the engine closed.
                raise KeyboardInterrupt
        self.talk.end_progress()

    def canceller(self) -> Callable[[], None] | None:
        """Return the function that ends the turn in order after an interrupt, or None while models load."""
        return self._cancel if self._at_work else None

    def _cancel(self) -> None:
        self._stopped = True
        if (generation := self._generation) is not None:
            generation.cancel()

    def _turn(self, pair: ModelPair, candidate: Candidate, at: int) -> Sample:
        """Return the sample of one turn.

        A new engine keeps nothing of the candidate before. The first prompt warms it up.
        """
        with Engine(candidate.config(self.base), pair=pair) as engine:
            self._show_notes(engine, candidate)
            self._generate(engine, self.prompts[0])
            done = [self._generate(engine, prompt) for prompt in self.prompts]
        return Sample(at, [stats for stats, _ in done], [text for _, text in done])

    def _generate(self, engine: Engine, prompt: str) -> tuple[RunStats, str]:
        engine.forget()  # A prompt that comes again would not be evaluated.
        self._generation = generation = engine.generate(prompt, self.max_tokens)
        try:
            text = "" if self._stopped else "".join(generation)
        finally:
            self._generation = None
        if self._stopped:
            raise KeyboardInterrupt
        return generation.stats, text

    def _show_notes(self, engine: Engine, candidate: Candidate) -> None:
        for note in engine.notes:
            if note not in self._noted and not candidate.is_baseline:
                self._noted.add(note)
                self.talk.end_progress()
                self.talk.note(note)

    def _leave_out(self, candidate: Candidate, error: OutOfMemoryError) -> None:
        self.left_out[candidate] = str(error)
        self.samples.pop(candidate, None)
        if all(each in self.left_out or each.is_baseline for each in self.candidates):
            raise error
        self.talk.end_progress()
        self.talk.note(f"left out: {candidate.label}: {error}")


def _bar(done: int, whole: int, width: int = 20) -> str:
    filled = done * width // whole
    return f"[{'#' * filled}{'.' * (width - filled)}]"
