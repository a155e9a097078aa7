"""The models that candidates run on: loaded once and shared, as far as that changes nothing and fits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from spac.bench.candidates import Candidate
from spac.config import EngineConfig
from spac.machine.cpu import default_threads, physical_cores
from spac.machine.host_memory import available
from spac.model.pair import LoadProgress, ModelPair, choose_device

Key = tuple[bool, bool]
"""(the CPU alone, with the draft model)"""


class SharedPair(ModelPair):
    """Models that stay loaded when the engine using them closes; the contexts are that engine's own."""

    def __init__(self, owner: ModelPair, config: EngineConfig) -> None:
        """config: of the engine. Raises OutOfMemoryError or SpacError with one line."""
        self._config, self._closing, self._all_rows = config, ExitStack(), False
        self.notes = []
        self.device, self.experts, self.target = owner.device, owner.experts, owner.target
        self.paged, self.copied, self.threads = owner.paged, owner.copied, owner.threads
        self.draft = owner.draft if config.draft_types else None
        self.draft_experts = owner.draft_experts if config.draft_types else None
        try:
            with self._room_for_prompts(self.experts):
                self._open_contexts()
        except BaseException:
            self.close()
            raise


class Pairs:
    """The pairs of all candidates. Two stay loaded side by side only where memory has room for both."""

    def __init__(
        self,
        base: EngineConfig,
        candidates: Sequence[Candidate],
        file_size: int,
        progress: LoadProgress | None,
    ) -> None:
        """file_size: bytes of the target and the draft. Raises InputError for an unknown device.

        All candidates compute with the same number of CPU threads, the CPU alone too: where none is given,
        with the default beside the device. Its own default would be larger, and ratios would compare threads.
        """
        self._candidates, self._progress = candidates, progress
        self._file_size = file_size
        device = choose_device(base.device)
        self.is_stand_in = device is not None and device.is_stand_in
        on_gpu = device is not None and not self.is_stand_in
        threads = default_threads(physical_cores(), gpu=on_gpu, simulated=self.is_stand_in)
        self.base = replace(base, threads=base.threads or threads)
        """The settings that all candidates share."""
        self._loaded: dict[Key, ModelPair] = {}

    def share(self, candidate: Candidate) -> SharedPair:
        """Models and new contexts for an engine of this candidate; no expert is resident.

        Raises what loading raises; notes about a pair come with its first loan.
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
        # What fits beside the models differs when one of them is not there.
        counts_memory = candidate.slots.is_auto and not self.is_stand_in
        return False, bool(candidate.config(self.base).draft_types) or not counts_memory

    def _load(self, key: Key) -> ModelPair:
        configs = [each.config(self.base) for each in self._candidates if self._key(each) == key]
        self._loaded[key] = pair = ModelPair(max(configs, key=_reach), self._progress, all_rows=False)
        # What a context has computed holds on to the slots of that time: every engine gets its own.
        for context in (pair.draft_context, pair.target_context):
            if context is not None:
                context.close()
        return pair

    def _make_room(self, key: Key) -> None:
        """Close what cannot stay beside the pair of `key`: slots that fit are counted on a free device."""
        for other in list(self._loaded):
            on_device = not (key[0] or other[0])
            # Twice: llama.cpp may make a copy of the weights in another layout, beside the file's mapping.
            if on_device or available() < 2 * self._file_size:
                self._loaded.pop(other).close()


def _reach(config: EngineConfig) -> int:
    return config.longest_draft if config.draft_types else 0
