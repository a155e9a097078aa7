"""The user's options for chat templates and reasoning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatOptions:
    """The options for chat templates and reasoning, after they were read and checked."""

    template: str | None = None
    """Jinja source in place of the model's template."""
    reasoning: bool = True
    """True if the model may reason before it answers."""
    reasoning_budget: int = -1
    """The largest number of reasoning tokens. -1 means no limit."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The template's variables, by name."""
    image_urls: bool = False
    """True if images are fetched from the http addresses in messages."""
    prefill: bool = True
    """True if an assistant's message at the end is the beginning of the answer."""


DEFAULTS = ChatOptions()
