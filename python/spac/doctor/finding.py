"""What a check of `spac doctor` tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "off", "fault"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `why` says what is off about it, and what to do; empty for "ok"."""

    name: str
    state: State
    found: str
    why: str = ""
