"""The measurement of candidates in turns, which affects all alike when the machine grows slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spac.bench.candidates import Candidate
from spac.cli.program import Talk
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import OutOfMemoryError

if TYPE_CHECKING:
    from spac.bench.pairs import Pairs
    from spac.engine.generation import Generation
    from spac.model.pair import ModelPair
    from spac.stats import RunStats


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
        if engine.session is not None:
            engine.session.reset()  # A prompt that comes again would not be evaluated.
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
