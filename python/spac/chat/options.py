"""What a user asks of chat templates and reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ChatOptions:
    """What was asked for, read and checked."""

    template: str | None
    """Jinja source in place of the model's template."""
    reasoning: bool
    reasoning_budget: int
    """Tokens; -1: no limit."""
    variables: dict[str, Any]
    """Of the template."""
    prefill: bool = True
    """Whether an assistant's message at the end is the beginning of the answer."""


DEFAULTS = ChatOptions(template=None, reasoning=True, reasoning_budget=-1, variables={})
