"""The models that candidates run on; they are shared where that fits and changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from spac.bench.candidates import Candidate
from spac.config import EngineConfig
from spac.machine.cpu import default_threads, physical_cores
from spac.machine.host_memory import available
from spac.model.devices import choose_device
from spac.model.pair import LoadProgress, ModelPair

Key = tuple[bool, bool]
"""Two flags: the pair is for the CPU alone, and it has the draft model."""


class SharedPair(ModelPair):
    """A pair whose models stay loaded when its engine closes; the contexts are that engine's own."""

    def __init__(self, owner: ModelPair, config: EngineConfig) -> None:
        """Make contexts on the models of `owner`, for an engine that has this configuration.

        Raise OutOfMemoryError or SpacError, with one line.
        """
        self._config, self._closing, self._all_rows = config, ExitStack(), False
        self.notes = []
        self.devices, self.device = owner.devices, owner.device
        self.experts, self.target = owner.experts, owner.target
        self.info, self.slot_layers = owner.info, owner.slot_layers
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
        self._loaded[key] = pair = ModelPair(max(configs, key=_reach), self._progress, all_rows=False)
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


def _reach(config: EngineConfig) -> int:
    return config.longest_draft if config.draft_types else 0
