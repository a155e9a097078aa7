"""The dialogue with an engine: one answer after the other, in one context."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac.chat.conversation import Conversation, Exchange
from spac.chat.options import DEFAULTS, ChatOptions
from spac.cli.program import as_text, read_image
from spac.engine.generation import as_tokens
from spac.errors import InputError, one_line
from spac.machine.files import read_plain, unreadable
from spac.stats.words import side

if TYPE_CHECKING:
    from spac._core import ChatPrompt
    from spac.engine import Engine
    from spac.engine.chat_format import Answer, ChatFormat, Delta
    from spac.engine.generation import Generation, Prompt

ROOM_SHARE = 4  # the context divided by this stays free for the answer


@dataclass(frozen=True)
class Piece:
    """The part of an answer that is shown next."""

    text: str
    is_reasoning: bool = False
    """True if the text is reasoning before the answer."""


class Dialogue:
    """Answers messages with an engine, and keeps the conversation.

    The engine's loop keeps the tokens that it has evaluated. If a prompt begins like the last one, only
    the rest is evaluated. The seed is chosen once, so that /stats can show it.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        conversation: Conversation,
        max_tokens: int | None,
        options: ChatOptions = DEFAULTS,
    ) -> None:
        """Prepare the dialogue. Raise InputError if the template's variable enable_thinking is not a bool."""
        self.engine, self.conversation = engine, conversation
        self._chat, self._max_tokens, self._options = chat, max_tokens, options
        self._variables = dict(options.variables)
        self.reasoning = self._variables.pop("enable_thinking", options.reasoning)
        """True if the model is asked to reason before it answers. It may be set at any time."""
        if not isinstance(self.reasoning, bool):
            raise InputError(
                f"--chat-template-kwargs: enable_thinking is true or false, not {self.reasoning!r}"
            )
        sampling = engine.config.sampling
        if sampling.seed in (None, -1):
            sampling = replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))
        self._sampling = sampling
        self._said, self._reading = _Said(), False
        self.on_reading: Callable[[int, int], object] | None = None
        """A callback for the progress of prompts, as `Engine.generate` has it."""
        self.images: list[str] = []
        """The data: addresses of images that go with the next message."""
        self._quoted = ""  # text files, which go with the next message
        self.draft: str | None = None
        """The last message while the user edits it, else None."""
        self.files: Sequence[tuple[str, Path | str]] = ()
        """Files that /save must not replace, and what messages call them."""
        self.generation: Generation | None = None
        """The generation that runs or ran last; None before the first one."""
        self.n_forgotten = 0
        """The number of oldest exchanges that do not fit into the context. They stay in the conversation."""

    def begin(self, conversation: Conversation) -> None:
        """Continue with another conversation."""
        self.conversation, self.n_forgotten, self.images, self._quoted = conversation, 0, [], ""

    def quote(self, path: str) -> None:
        """Put a text file in front of the next message. Raise InputError if it cannot be read."""
        file = Path(path).expanduser()
        try:
            data = read_plain(file)
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from None
        self._quoted += f"{file.name}:\n```\n{as_text(data, path).strip()}\n```\n\n"

    def set_sampling(self, name: str, value: str) -> str:
        """Set an option of sampling for the next answers, and return the setting.

        Without a `value`, the present one stays. Raise InputError if there is no such option, or if it
        cannot have this value.
        """
        field = name.lstrip("-").replace("-", "_")
        known = [each.name for each in fields(self._sampling) if each.metadata.get("range") is not None]
        if field not in known:
            raise InputError(f"/set: '{one_line(name)}' is none of {', '.join(known)}")
        if value:
            try:
                number: Any = int(value) if value.lstrip("-").isdecimal() else float(value)
            except ValueError:
                raise InputError(f"/set {name} needs a number, not '{one_line(value)}'") from None
            self._sampling = replace(self._sampling, **{field: number})
        return f"{field} {getattr(self._sampling, field)}"

    def show(self, path: str) -> None:
        """Add an image to the next message. Raise InputError if it cannot be shown to the model."""
        data = read_image(path)
        self.engine.image_prompt("", [data])
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        self.images.append(f"data:{kind};base64,{base64.b64encode(data).decode()}")

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the template and the present setting of reasoning."""
        return [note for note in (self._chat.note, self.reasoning_note) if note]

    @property
    def reasoning_note(self) -> str:
        """The reason why reasoning cannot be turned off although it should be; "" if there is none."""
        if self.reasoning or self._chat.can_stop_thinking:
            return ""
        note = "the chat template has no way to turn reasoning off"
        return f"{note}; --reasoning-budget 0 ends it at once" if self._chat.thinks else note

    @property
    def answered(self) -> bool:
        """True if the last answer has any text besides its reasoning."""
        return bool(self._said.content)

    @property
    def context(self) -> int:
        """The number of tokens that the context holds."""
        return self.engine.context

    def answer(self, text: str) -> Iterator[Piece]:
        """Return the pieces of the answer to `text`, as they come.

        The answer becomes part of the conversation as far as it came, also if it is stopped or fails. An
        answer of reasoning alone is not kept. Raise InputError if `text` alone does not fit into the
        context.
        """
        return self._answer(self._quoted + text, None)

    def answer_again(self, text: str | None = None) -> Iterator[Piece]:
        """Return the pieces of another answer, which takes the place of the last one.

        It answers `text` in place of the last message, or that message with another seed. If nothing comes
        of it, the last message and its answer stay. Raise InputError if there was no answer yet.
        """
        exchanges = self.conversation.exchanges
        if not exchanges:
            raise InputError("/regen: there was no answer yet")
        last, images, quoted = exchanges.pop(), self.images, self._quoted
        if text is None:
            seed = (self._sampling.seed or 0) + 1
            self._sampling = replace(self._sampling, seed=seed % (2**32 - 1))
        self.images = list(last.images)
        try:
            return self._answer(last.user if text is None else text, last)
        except BaseException:
            exchanges.append(last)
            raise
        finally:
            self.images, self._quoted = images, quoted

    def _answer(self, text: str, instead_of: Exchange | None) -> Iterator[Piece]:
        prompt, tokens = self._fit(text)
        images, self.images, self._quoted = tuple(self.images), [], ""
        self.generation = generation = self.engine.generate(
            tokens, self._max_tokens, stop=(*self._chat.stop, *prompt.stops), sampling=self._sampling,
            progress=self._note_reading, chat=None if self._chat.is_plain else prompt,
            reasoning_budget=self._options.reasoning_budget,
        )  # fmt: skip
        return self._read(text, images, generation, self._chat.answer(prompt), instead_of)

    def _note_reading(self, done: int, total: int) -> None:
        self._reading = True
        if self.on_reading is not None:
            self.on_reading(done, total)

    def _read(
        self,
        text: str,
        images: tuple[str, ...],
        generation: Generation,
        answer: Answer,
        instead_of: Exchange | None,
    ) -> Iterator[Piece]:
        self._said = said = _Said()
        try:
            try:
                for piece in generation:
                    self._reading = False
                    yield from said.take(answer.push(piece))
            finally:  # additions that `push` held back are kept too
                rest = said.take(answer.finish())
            yield from rest
        finally:
            self._reading, said.is_reasoning = False, False
            if said.content:
                reasoning = said.reasoning.rstrip()
                self.conversation.exchanges.append(Exchange(text, said.content, reasoning, images))
            elif instead_of is not None:
                self.conversation.exchanges.append(instead_of)

    def _prompt(self, text: str, skip: int) -> tuple[ChatPrompt, Prompt, int]:
        """Return the prompt without the oldest `skip` exchanges, what is evaluated, and its tokens."""
        messages = self.conversation.messages(text, skip, self.images)
        prompt, tokens = self.engine.chat_prompt(
            self._chat, messages, thinking=self.reasoning, variables=self._variables
        )
        return prompt, tokens, len(as_tokens(self.engine.target, tokens))

    def _fit(self, text: str) -> tuple[ChatPrompt, Prompt]:
        """Return the prompt and its tokens, without the oldest exchanges if no space for an answer is left.

        The rest is evaluated again when an exchange is left out. So enough exchanges are left out at once to
        free half of the context, if that is possible.
        """
        exchanges = len(self.conversation.exchanges)
        forgotten = self.n_forgotten = min(self.n_forgotten, exchanges)
        room = max(1, self.context // ROOM_SHARE)
        if self._max_tokens is not None:
            room = min(room, self._max_tokens)
        fitting: tuple[ChatPrompt, Prompt] | None = None
        for skip in range(forgotten, exchanges + 1):
            prompt, tokens, n_tokens = self._prompt(text, skip)
            fits = n_tokens + room <= self.context
            if fits and fitting is None:
                fitting, self.n_forgotten = (prompt, tokens), skip
            if fits and (skip == forgotten or 2 * n_tokens <= self.context):
                self.n_forgotten = skip
                return prompt, tokens
        if fitting is not None:
            return fitting
        if n_tokens >= self.context:
            raise InputError(
                f"the message has {n_tokens} tokens with its system prompt, and the context holds "
                f"{self.context}: shorten it, or raise --ctx"
            )
        self.n_forgotten = exchanges
        return prompt, tokens

    @property
    def ended_by_context(self) -> bool:
        """True if the last answer ended because the context is full."""
        return self.generation is not None and self.generation.ended_by_context

    @property
    def ending(self) -> str:
        """A note for the user about the end of the last answer; "" if the answer is whole."""
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
        """Return the available figures of the last answer on one line.

        Before an answer begins, the line says how much of the prompt has been evaluated. While the model
        reasons, the line says so.
        """
        if self.generation is None:
            return ""
        if self._reading and (reading := self.engine.reading.now()) is not None:
            return f"reading: {reading.done} of {reading.total} tokens{reading.left}"
        stats, parts = self.generation.stats, ["reasoning"] if self._said.is_reasoning else []
        if stats.tokens_per_second is not None:
            parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
        if stats.acceptance is not None:
            parts.append(f"acceptance {stats.acceptance:.0%}")
        if stats.hit_rate is not None and stats.gpu_share is not None and stats.cpu_share is not None:
            parts.append(f"hit rate {stats.hit_rate:.0%}")
            device = side(stats.device_is_simulated)
            parts.append(f"{device} {stats.gpu_share:.0%} / CPU {stats.cpu_share:.0%}")
        parts.append(f"context {stats.prompt_tokens + stats.generated_tokens}/{stats.context}")
        return " · ".join(parts)


class _Said:
    """The text of an answer so far, without the white space at its beginning."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.is_reasoning = False
        """True if the last piece was reasoning."""

    def take(self, deltas: Sequence[Delta]) -> list[Piece]:
        """Add text, and return the pieces of it to show."""
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
