"""The measurement of candidates in turns, which affects all alike when the machine grows slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spac.bench.candidates import Candidate
from spac.cli.program import Talk
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import OutOfMemoryError
from spac.machine.cpu import default_threads, physical_cores
from spac.model.devices import choose_device

if TYPE_CHECKING:
    from spac.engine.generation import Generation
    from spac.stats import RunStats


def with_threads(base: EngineConfig) -> tuple[EngineConfig, bool]:
    """Return `base` with the number of CPU threads of all settings, and True if the device is simulated.

    The CPU alone computes with as many. Its own default would be larger, and ratios would compare threads.
    Raise InputError for an unknown device.
    """
    device = choose_device(base.device)
    simulated = device is not None and device.shares_host_cores
    on_gpu = device is not None and not simulated
    threads = default_threads(physical_cores(), gpu=on_gpu, shares_cores=simulated)
    return replace(base, threads=base.threads or threads), simulated


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
    """The candidates that do not fit into memory, with the error's message."""
    _generation: Generation | None = None
    _at_work: bool = False
    _stopped: bool = False
    _noted: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Measure all candidates.

        Raise InputError for unusable prompts, and OutOfMemoryError when no candidate fits. Raise
        KeyboardInterrupt after a cancellation.
        """
        n_turns = self.repeat * len(self.candidates)
        for turn in range(n_turns):
            at, place = divmod(turn, len(self.candidates))
            # Every other round runs backwards, so that a steady drift affects all alike.
            candidate = self.candidates[place if at % 2 == 0 else -1 - place]
            if candidate in self.left_out:
                continue
            line = f"{_bar(turn, n_turns)} {turn + 1}/{n_turns} {candidate.label}"
            try:
                self.samples.setdefault(candidate, []).append(self._turn(candidate, at, line))
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

    def _turn(self, candidate: Candidate, at: int, line: str) -> Sample:
        """Show `line`, and return the sample of one turn.

        A new engine keeps nothing of the candidate before. The first prompt warms it up.
        """
        with Engine(candidate.config(self.base), progress=self.talk.progress) as engine:
            self._at_work = True
            self._show_notes(engine, candidate)
            self.talk.show(line)
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
