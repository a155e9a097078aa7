"""The result of a check of `spac doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "off", "fault"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `why` says what is off and what to do. It is empty for "ok"."""

    name: str
    state: State
    found: str
    why: str = ""
