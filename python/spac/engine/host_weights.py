"""Host memory that holds what the device holds too, and is given back where memory is short.

The system drops pages of a file when memory is short. It cannot drop a copy of the file on huge pages, nor
pages that the device's driver has pinned. Nobody reads the dense weights there that the device holds, nor the
experts of whole layers. While memory is short, they are given back (`_core.Experts.return_to_file`). A layer
that is whole no more is then read from the file.
"""

from __future__ import annotations

from time import monotonic

from spac import _core
from spac.machine import host_memory
from spac.machine.device_memory import size

LOOK_S = 1.0
"""Seconds between two looks at the system's memory."""
SHORT = 1 / 16
"""Memory is short while less than this share of it is available."""


class HostWeights:
    """Gives back the host's memory of weights that the device holds."""

    def __init__(self, experts: _core.Experts, *, dense: bool) -> None:
        """Begin. dense: True if the device holds all of the target's dense weights."""
        self._experts, self._dense = experts, dense
        self._given: set[int] = set()  # layers that were given back and have been whole since
        self._looked = monotonic()
        self._has_given = False

    def look(self, now: float | None = None) -> str:
        """Give memory back if it is short, and return a note the first time; "" for none.

        now: the time in seconds. The system is asked once a second at most.
        """
        now = monotonic() if now is None else now
        if now - self._looked < LOOK_S:
            return ""
        self._looked = now
        free, total = host_memory.available(), host_memory.most()
        if not total or free >= SHORT * total:
            return ""
        resident = self._experts.residency() >= 0
        exists = [layer.n_expert for layer in self._experts.layers]
        whole = {il for il, n in enumerate(exists) if resident[il, :n].all()}
        self._given &= whole
        if whole == self._given and not self._dense:
            return ""
        given = self._experts.return_to_file(sorted(whole - self._given), self._dense)
        if not given:  # Copies from pinned memory are under way, or no whole page is left.
            return ""
        self._given, self._dense = whole, False
        first, self._has_given = not self._has_given, True
        return (
            f"memory: {size(free)} were available, so {size(given)} of weights that the device holds left it"
            if first
            else ""
        )
