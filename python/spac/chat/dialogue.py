"""The conversation with an engine: one answer after the other, in one context."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spac.chat.conversation import Conversation, Exchange
from spac.chat.options import DEFAULTS, ChatOptions
from spac.errors import InputError

if TYPE_CHECKING:
    from spac._core import ChatPrompt
    from spac.chat.format import Answer, ChatFormat, Delta
    from spac.engine import Engine
    from spac.engine.generation import Generation
    from spac.model.c_api import TokenArray

ROOM_SHARE = 4  # of the context, one part in so many stays free for the answer


@dataclass(frozen=True)
class Piece:
    """What is shown of an answer next."""

    text: str
    is_reasoning: bool = False
    """Whether it is not yet the answer, but what the model reasons before."""


class Dialogue:
    """An engine, a chat format and what was said.

    The engine's session keeps what it has evaluated: of a prompt that begins like the last one, only the
    rest is. A seed is chosen once, so that /stats can tell it.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        conversation: Conversation,
        max_tokens: int | None,
        options: ChatOptions = DEFAULTS,
    ) -> None:
        """Raises InputError for options that contradict themselves."""
        self.engine, self.conversation = engine, conversation
        self._chat, self._max_tokens, self._options = chat, max_tokens, options
        self._variables = dict(options.variables)
        self.reasoning = self._variables.pop("enable_thinking", options.reasoning)
        """Whether the model is asked to reason before it answers. May be set at any time."""
        if not isinstance(self.reasoning, bool):
            raise InputError(
                f"--chat-template-kwargs: enable_thinking is true or false, not {self.reasoning!r}"
            )
        sampling = engine.config.sampling
        if sampling.seed in (None, -1):
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))
        self._sampling = sampling
        self._said, self._reading = _Said(), ""
        self.generation: Generation | None = None
        """The one that runs or ran last; None before the first."""
        self.n_forgotten = 0
        """The oldest exchanges that the context has no room for. They stay in the conversation."""

    def begin(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation, self.n_forgotten = conversation, 0

    @property
    def notes(self) -> list[str]:
        """What a user should know about the template, as reasoning is set now."""
        return [note for note in (self._chat.note, self.reasoning_note) if note]

    @property
    def reasoning_note(self) -> str:
        """What keeps a model from doing without reasoning where it should; "" for nothing."""
        if self.reasoning or self._chat.can_stop_thinking:
            return ""
        note = "the chat template has no way to turn reasoning off"
        return f"{note}; --reasoning-budget 0 ends it at once" if self._chat.thinks else note

    @property
    def answered(self) -> bool:
        """Whether the last answer has any text, beside what was reasoned."""
        return bool(self._said.content)

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

    def answer(self, text: str) -> Iterator[Piece]:
        """The answer to `text`, piece by piece; becomes part of the conversation as far as it came, also when
        it is stopped or fails. Reasoning alone is no answer, and not kept. Raises InputError when `text`
        alone does not fit into the context.
        """
        prompt, tokens = self._fit(text)
        self.generation = generation = self.engine.generate(
            tokens, self._max_tokens, stop=(*self._chat.stop, *prompt.stops), sampling=self._sampling,
            progress=self._note_reading, chat=None if self._chat.is_plain else prompt,
            reasoning_budget=self._options.reasoning_budget,
        )  # fmt: skip
        return self._read(text, generation, self._chat.answer(prompt))

    def _note_reading(self, done: int, total: int) -> None:
        self._reading = f"reading: {done} of {total} tokens"

    def _read(self, text: str, generation: Generation, answer: Answer) -> Iterator[Piece]:
        self._said = said = _Said()
        try:
            try:
                for piece in generation:
                    self._reading = ""
                    yield from said.take(answer.push(piece))
            finally:  # what has not been told yet is not lost
                rest = said.take(answer.finish())
            yield from rest
        finally:
            self._reading, said.is_reasoning = "", False
            if said.content:
                self.conversation.exchanges.append(Exchange(text, said.content, said.reasoning.rstrip()))

    def _fit(self, text: str) -> tuple[ChatPrompt, TokenArray]:
        """The prompt and its tokens, without the oldest exchanges that would leave no room for an answer.

        Without them, all the others are read again: when some have to go, so many do that half of the context
        is free, if they can.
        """
        exchanges = len(self.conversation.exchanges)
        forgotten = self.n_forgotten = min(self.n_forgotten, exchanges)
        room = max(1, self.context // ROOM_SHARE)
        if self._max_tokens is not None:
            room = min(room, self._max_tokens)
        fitting: tuple[ChatPrompt, TokenArray] | None = None
        for skip in range(forgotten, exchanges + 1):
            messages = self.conversation.messages(text, skip)
            prompt = self._chat.prompt(messages, thinking=self.reasoning, variables=self._variables)
            tokens = self.engine.tokenize(prompt.text)
            fits = tokens.size + room <= self.context
            if fits and fitting is None:
                fitting, self.n_forgotten = (prompt, tokens), skip
            if fits and (skip == forgotten or 2 * tokens.size <= self.context):
                self.n_forgotten = skip
                return prompt, tokens
        if fitting is not None:
            return fitting
        if tokens.size >= self.context:
            raise InputError(
                f"the message has {tokens.size} tokens with its system prompt, and the context holds "
                f"{self.context}: shorten it, or raise --ctx"
            )
        self.n_forgotten = exchanges
        return prompt, tokens

    @property
    def ended_by_context(self) -> bool:
        """Whether the last answer stops because the context is full."""
        generation = self.generation
        if generation is None or generation.reason != "length":
            return False
        return self._max_tokens is None or generation.stats.generated_tokens < self._max_tokens

    @property
    def ending(self) -> str:
        """What a user should know about the end of the last answer; "" where it is whole."""
        if self.generation is None:
            return ""
        reason = self.generation.reason
        if reason == "cancelled" and self.answered:
            return "stopped"
        if reason == "cancelled":
            when = "while it reasoned" if self._said.reasoning else "before the answer began"
            return f"stopped {when}: not kept"
        if self.ended_by_context:
            lost = "" if self.answered else ", before the answer began: not kept"
            return f"the answer ends here: the context of {self.context} tokens is full{lost}"
        if self.answered:
            return ""
        if reason == "length":
            where = "in its reasoning" if self._said.reasoning else "before the answer began"
            return f"--max-tokens ended it {where}: not kept"
        if self._said.reasoning:
            return "the model reasoned and did not answer: not kept"
        return "the model has nothing to say"

    def status(self) -> str:
        """The figures of the last answer on one line; those that it cannot have are left out.

        Before an answer begins: how much of the prompt has been read. While the model reasons, it says so.
        """
        if self.generation is None:
            return ""
        if self._reading:
            return self._reading
        stats, parts = self.generation.stats, ["reasoning"] if self._said.is_reasoning else []
        if stats.tokens_per_second is not None:
            parts.append(f"{stats.tokens_per_second:.1f} tok/s")
        if stats.acceptance is not None:
            parts.append(f"acceptance {stats.acceptance:.0%}")
        if stats.hit_rate is not None and stats.gpu_share is not None and stats.cpu_share is not None:
            parts.append(f"hit rate {stats.hit_rate:.0%}")
            parts.append(f"GPU {stats.gpu_share:.0%} / CPU {stats.cpu_share:.0%}")
        parts.append(f"context {stats.prompt_tokens + stats.generated_tokens}/{stats.context}")
        return " · ".join(parts)


class _Said:
    """What an answer has said so far, without the space that it begins with."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.is_reasoning = False
        """Whether what came last is not yet the answer."""

    def take(self, deltas: Sequence[Delta]) -> list[Piece]:
        """Adds them; returns what is shown of them."""
        pieces = []
        for delta in deltas:
            is_reasoning = bool(delta.reasoning)
            before = self.reasoning if is_reasoning else self.content
            text = delta.reasoning or delta.content
            text = text if before else text.lstrip()
            if not text:
                continue
            if is_reasoning:
                self.reasoning += text
            else:
                self.content += text
            self.is_reasoning = is_reasoning
            pieces.append(Piece(text, is_reasoning))
        return pieces
