"""A recorder that also keeps the experts of every token, for traces (`spac.scheduler.trace`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.machine.files import check_writable
from spac.scheduler.trace import Trace
from spac.stats.recording import Recorder

if TYPE_CHECKING:
    import spac._core as _core
    from spac.stats.run_stats import RunStats


class TraceRecorder(Recorder):
    """Records one generation, and writes the routes of its accepted tokens."""

    def __init__(self, path: Path | str | None, trace: Path | str) -> None:
        """Make an empty recording, which `write` writes to `path`, and the trace to `trace`.

        Raise InputError if a file cannot be written there.
        """
        super().__init__(path)
        check_writable(Path(trace))
        self._trace_path = Path(trace)
        self._routes: list[Int32Array] = []

    def begin(self, draft_max: int, experts: _core.Experts | None, counts: Mapping[str, int]) -> None:
        """Begin recording after the prompt. Raise InputError for a model without experts."""
        if experts is None or experts.n_layer == 0:
            raise InputError("--trace needs a model with experts that spac manages: this one has none")
        super().begin(draft_max, experts, counts)

    def step(
        self,
        step: _core.Step,
        time_ns: int,
        counts: Mapping[str, int],
        length: int,
        n_sequences: int = 1,
    ) -> None:
        """Record a step that is over, as `Recorder.step` does. Raise InputError for several generations."""
        if n_sequences > 1:
            raise InputError("a trace is of one generation at a time: give --parallel 1")
        super().step(step, time_ns, counts, length, n_sequences)
        assert self._experts is not None
        self._routes.append(self._experts.routes()[:, : step.n_accepted + 1].transpose(1, 0, 2).copy())

    def write(self, stats: RunStats) -> None:
        """Write the files, each whole or not at all, or raise InputError. There is no trace of no token."""
        if self.path is not None:
            super().write(stats)
        if not self._routes:
            return  # whatever ended the run before its first token has its own message
        experts = np.concatenate(self._routes)
        layers = (self._model or {})["layers"]
        size = max(layer["expert_bytes"] for layer in layers)
        n_expert = max(layer["n_expert"] for layer in layers)
        Trace(experts, np.array([len(experts)], np.int32), n_expert, size).save(self._trace_path)
