"""Numbers of layers that devices with slots alone get, in place of those that follow from their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from spac.model.slot_layers import SlotLayers


@contextmanager
def layers_on_slot_devices(*counts: int) -> Iterator[None]:
    """Give the devices so many layers while models are loaded; without numbers, change nothing."""
    if not counts:
        yield
        return
    with patch.object(SlotLayers, "_by_memory", lambda *_: counts):
        yield
