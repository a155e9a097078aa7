"""The conversation with an engine: one answer after the other, in one context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from spac.chat.conversation import Conversation, Exchange
from spac.errors import InputError

if TYPE_CHECKING:
    from spac._llama import TokenArray
    from spac.chat.template import Template
    from spac.engine import Engine
    from spac.generation import Generation

ROOM_SHARE = 4  # of the context, one part in so many stays free for the answer


class Dialogue:
    """An engine, a template and what was said.

    The engine's session keeps what it has evaluated: of a prompt that begins like the last one, only the
    rest is. A seed is chosen once, so that /stats can tell it.
    """

    def __init__(
        self, engine: Engine, template: Template, conversation: Conversation, max_tokens: int | None
    ) -> None:
        self.engine, self.conversation = engine, conversation
        self._template, self._max_tokens = template, max_tokens
        sampling = engine.config.sampling
        if sampling.seed in (None, -1):
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))
        self._sampling = sampling
        self._answered, self._reading = False, ""
        self.generation: Generation | None = None
        """The one that runs or ran last; None before the first."""
        self.n_forgotten = 0
        """The oldest exchanges that the context has no room for. They stay in the conversation."""

    def begin(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation, self.n_forgotten = conversation, 0

    @property
    def note(self) -> str:
        """What a user should know about the template; "" for nothing."""
        return self._template.note

    @property
    def answered(self) -> bool:
        """Whether the last answer has any text."""
        return self._answered

    @property
    def context(self) -> int:
        """Tokens that the context holds."""
        return self.engine.context

    def set_draft_length(self, n: int | None) -> None:
        """Tokens drafted per step from the next answer on; None leaves it to the governor of the start.

        Raises InputError beyond what was started with.
        """
        config = self.engine.config
        longest = config.longest_draft if config.draft_types else 0
        if n is not None and not 0 <= n <= longest:
            more = "; start with --draft-max for more" if longest else ", for there is no draft"
            raise InputError(f"draft length {n}: 0 to {longest} here{more}")
        self.engine.fix_draft_length(n)

    def answer(self, text: str) -> Iterator[str]:
        """The answer to `text`, piece by piece; becomes part of the conversation as far as it came, also when
        it is stopped or fails. Raises InputError when `text` alone does not fit into the context.
        """
        prompt = self._fit(text)
        self.generation = generation = self.engine.generate(
            prompt, self._max_tokens, stop=self._template.stop, sampling=self._sampling,
            progress=self._note_reading,
        )  # fmt: skip
        return self._read(text, generation)

    def _note_reading(self, done: int, total: int) -> None:
        self._reading = f"reading: {done} of {total} tokens"

    def _read(self, text: str, generation: Generation) -> Iterator[str]:
        pieces: list[str] = []
        self._answered = False
        try:
            for piece in generation:
                if not pieces:
                    piece = piece.lstrip()
                if piece:
                    self._answered = True
                    pieces.append(piece)
                    yield piece
        finally:
            self._reading = ""
            if pieces:
                self.conversation.exchanges.append(Exchange(text, "".join(pieces)))

    def _fit(self, text: str) -> TokenArray:
        """The prompt's tokens, without the oldest exchanges that would leave no room for an answer."""
        exchanges = len(self.conversation.exchanges)
        self.n_forgotten = min(self.n_forgotten, exchanges)
        room = max(1, self.context // ROOM_SHARE)
        if self._max_tokens is not None:
            room = min(room, self._max_tokens)
        for skip in range(self.n_forgotten, exchanges + 1):
            messages = self.conversation.messages(text, skip)
            tokens = self.engine.tokenize(self._template.render(messages))
            if tokens.size + room <= self.context:
                break
        if tokens.size >= self.context:
            raise InputError(
                f"the message has {tokens.size} tokens with its system prompt, and the context holds "
                f"{self.context}: shorten it, or raise --ctx"
            )
        self.n_forgotten = skip
        return tokens

    @property
    def ended_by_context(self) -> bool:
        """Whether the last answer stops because the context is full."""
        generation = self.generation
        if generation is None or generation.reason != "length":
            return False
        return self._max_tokens is None or generation.stats.generated_tokens < self._max_tokens

    def status(self) -> str:
        """The figures of the last answer on one line; those that it cannot have are left out.

        Before an answer begins: how much of the prompt has been read.
        """
        if self.generation is None:
            return ""
        if self._reading and not self._answered:
            return self._reading
        stats, parts = self.generation.stats, []
        if stats.tokens_per_second is not None:
            parts.append(f"{stats.tokens_per_second:.1f} tok/s")
        if stats.acceptance is not None:
            parts.append(f"acceptance {stats.acceptance:.0%}")
        if stats.hit_rate is not None and stats.gpu_share is not None and stats.cpu_share is not None:
            parts.append(f"hit rate {stats.hit_rate:.0%}")
            parts.append(f"GPU {stats.gpu_share:.0%} / CPU {stats.cpu_share:.0%}")
        parts.append(f"context {stats.prompt_tokens + stats.generated_tokens}/{stats.context}")
        return " · ".join(parts)
