"""From messages to a prompt: the model's own chat template, or a plain one where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from spac.chat.conversation import Message
from spac.errors import InputError, one_line

if TYPE_CHECKING:
    from spac._llama import Model

FALLBACK = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% else %}{{ message.role | capitalize }}: {{ message.content }}\n{% endif %}"
    "{% endfor %}Assistant:"
)
FALLBACK_STOP = ("\nUser:",)


class Template:
    """A chat template at work. `note` says what a user should know about it; "" for nothing."""

    def __init__(self, model: Model, source: str | None = None) -> None:
        """`source` is a Jinja template in place of the model's. Raises InputError when that one is faulty."""
        self._begin, self._end, self._adds_begin = model.begin_text, model.end_text, model.adds_begin
        self.stop: tuple[str, ...] = ()
        """Texts that end an answer, beside the model's end tokens."""
        self.note = ""
        self._folds_system = False
        given = source is not None
        if source is None:
            source = model.chat_template
        if source is None:
            self._fall_back(f"{model.path.name} has no chat template: a plain one is used")
            return
        fault = self._adopt(source)
        if fault and given:
            raise InputError(f"the chat template cannot be used: {fault}")
        if fault:
            self._fall_back(f"the model's chat template cannot be used ({fault}): a plain one is")

    def render(self, messages: list[Message]) -> str:
        """The prompt after which the assistant's answer comes.

        Without the beginning token, where tokenizing adds it. Raises InputError when the template refuses.
        """
        try:
            return self._render(self._fold(messages) if self._folds_system else messages)
        except Exception as error:  # a template is a program of the model's author
            raise InputError(f"the chat template refuses these messages: {one_line(str(error))}") from None

    def _adopt(self, source: str) -> str:
        """Take a template; returns what is wrong with it, or ""."""
        user = {"role": "user", "content": "hello"}
        try:
            self._formatter = Jinja2ChatFormatter(source, self._end, self._begin)
            if not self._render([user]).strip():
                return "it renders nothing"
        except Exception as error:
            return one_line(str(error)) or type(error).__name__
        try:
            rendered = self._render([{"role": "system", "content": "be brief"}, user])
            self._folds_system = "be brief" not in rendered
        except Exception:  # some have no place for a system prompt and say so
            self._folds_system = True
        if self._folds_system:
            self.note = "the model's template has no system prompt: it goes in front of the first message"
        return ""

    def _fall_back(self, note: str) -> None:
        self.note, self.stop, self._folds_system = note, FALLBACK_STOP, False
        self._formatter = Jinja2ChatFormatter(FALLBACK, self._end, self._begin)

    def _render(self, messages: list[Message]) -> str:
        text = str(self._formatter(messages=messages).prompt)
        return text.removeprefix(self._begin) if self._adds_begin and self._begin else text

    @staticmethod
    def _fold(messages: list[Message]) -> list[Message]:
        if len(messages) < 2 or messages[0]["role"] != "system":
            return messages
        system, first, *others = messages
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]
