"""Conversion of messages to a prompt, and of an answer to a message, in the format of the model's family.

llama.cpp's `common` knows how each family writes its reasoning and its tool calls: `<think>`, gpt-oss's
channels, a dozen ways to write a call. Chat and server read answers with this module only.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spac import _core
from spac.config.schema_limits import check_schemas
from spac.engine.chat_messages import folded, split_begun, text_of
from spac.engine.text_stream import StopSearch
from spac.errors import InputError, one_line
from spac.model.c_api import Model

FALLBACK = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% else %}{{ message.role | capitalize }}: {{ message.content }}\n{% endif %}"
    "{% endfor %}Assistant:"
)
"""The Jinja template of models that have none."""
FALLBACK_STOP = ("\nUser:",)

_RAISED = "Jinja Exception: "  # the prefix of errors from a template's raise_exception()

TEXTS = ("reasoning_content", "content")
"""The keys of a message's texts, in the order in which the texts come."""

READING_SHARE = 0.1  # the largest share of the time that goes into reading the answer so far


@dataclass(frozen=True)
class Delta:
    """An addition to an answer: text of its reasoning, of its content, or a part of its tool call `index`."""

    reasoning: str = ""
    content: str = ""
    index: int | None = None
    name: str = ""
    arguments: str = ""
    """The new part of the arguments' JSON text."""


class ChatFormat:
    """The chat templates of a model. An object keeps the model alive."""

    def __init__(self, model: Model, source: str | None = None) -> None:
        """Read the model's template, or the Jinja template `source` in its place.

        Raise InputError if `source` cannot be used. A model without a usable template gets a plain one, and
        `note` says so.
        """
        self._model, self.note, self.is_plain = model, "", False
        self._folds_system = False
        given = source if source is not None else model.chat_template
        if given is None:
            fault = f"{model.path.name} has no chat template"
        else:  # "" means the model's own, with its variant for tools
            fault = self._adopt(source or "") if given.strip() else "it is empty"
        if fault and source is not None:
            raise InputError(f"the chat template cannot be used: {fault}")
        if fault:
            wrong = fault if given is None else f"the model's chat template cannot be used ({fault})"
            self._templates = _core.ChatTemplates(model.pointer, FALLBACK)
            self.note, self.is_plain, self._folds_system = f"{wrong}: a plain one is used", True, False

    def _adopt(self, source: str) -> str:
        """Set the template, and return what is wrong with it, or ""."""
        user = {"role": "user", "content": "hello"}
        try:
            self._templates = _core.ChatTemplates(self._model.pointer, source)
            if not self._apply({"messages": [user]}).text.strip():
                return "it renders nothing"
        except InputError as error:
            return _cause(error)
        has_place = self._templates.capabilities.get("supports_system_role", True)
        try:
            # The library folds the system prompt if a template does not read it. Some templates read it and
            # still leave it out.
            with_system = self._apply({"messages": [{"role": "system", "content": "be brief"}, user]})
            self._folds_system = "be brief" not in with_system.text
        except InputError:
            self._folds_system = True
        if self._folds_system or not has_place:
            self.note = "the model's template has no system prompt: it goes in front of the first message"
        return ""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer, besides the prompt's own `stops` and the model's end tokens."""
        return FALLBACK_STOP if self.is_plain else ()

    @property
    def can_stop_thinking(self) -> bool:
        """True if `thinking` changes the prompt."""
        return self._templates.can_stop_thinking

    @property
    def thinks(self) -> bool:
        """True if the model may reason before it answers, according to the template."""
        return self._apply({"messages": [{"role": "user", "content": "hello"}]}).thinks

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = False,
        json_schema: Mapping[str, Any] | None = None,
        thinking: bool = True,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> _core.ChatPrompt:
        """Return the prompt after which the assistant's answer comes.

        `messages`, `tools` and `tool_choice` ("auto", "none", "required") are OpenAI's. The answer has to
        follow `json_schema`. `variables` are the template's own (`--chat-template-kwargs`). With `continues`,
        an assistant's message at the end is the beginning of the answer. Raise InputError with the reason if
        the template refuses the messages or the request is invalid.
        """
        before, begun = split_begun(messages, thinking) if continues else (list(messages), None)
        if begun is not None and self.is_plain and text_of(begun):
            begun = {**begun, "content": " " + text_of(begun).lstrip()}  # the plain template writes one space
        request: dict[str, Any] = {
            "messages": [*(folded(before) if self._folds_system else before), *([begun] if begun else ())],
            "continue_final_message": begun is not None,
            "tool_choice": tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "enable_thinking": thinking,
        }
        if tools:
            request["tools"] = list(tools)
        check_schemas([*(_parameters(tool) for tool in tools), json_schema])
        if json_schema is not None:
            request["json_schema"] = json_schema
        if variables:
            request["chat_template_kwargs"] = dict(variables)
        try:
            return self._apply(request)
        except InputError as error:
            cause = _cause(error)
            _, _, fault = cause.partition("JSON schema error ")
            if fault:  # in the answer's schema, or in a tool's
                raise InputError(f"a JSON schema cannot be used: {fault}") from None
            raise InputError(f"the chat template refuses these messages: {cause}") from None

    def _apply(self, request: Mapping[str, Any]) -> _core.ChatPrompt:
        return self._templates.apply(_dumped(request))

    def answer(self, prompt: _core.ChatPrompt, stop: Sequence[str] = ()) -> Answer:
        """Return the reader of the answer to a prompt of this format; `Answer` describes `stop`."""
        return Answer(None if self.is_plain and not prompt.calls else prompt, stop)


class Answer:
    """Reads an answer as it comes.

    The whole text is read anew each time. READING_SHARE limits the time that this takes. The answer ends
    before the first stop string in its content. Stop strings do not count in reasoning and in calls of tools.
    """

    def __init__(self, prompt: _core.ChatPrompt | None, stop: Sequence[str] = ()) -> None:
        """Prepare to read the answer to `prompt`; None means that the whole answer is content."""
        self._prompt, self._text = prompt, ""
        self._stops, self._search = [each for each in stop if each], StopSearch(stop)
        self._content, self._has_begun = "", False  # True if the content has more than white space
        begun = _read(prompt, "", is_partial=True) if prompt is not None and prompt.goes_on else None
        self._begun = {key: str((begun or {}).get(key) or "") for key in TEXTS}  # in the last message
        self._sent: dict[str, Any] = dict(self._begun)
        self._due = 0.0

    @property
    def reasoning(self) -> str:
        """The model's reasoning so far."""
        return str(self._sent["reasoning_content"])[len(self._begun["reasoning_content"]) :]

    @property
    def content(self) -> str:
        """The content of the answer so far."""
        return self._content

    @property
    def stopped(self) -> bool:
        """True after a stop string. Text that is pushed then is lost."""
        return self._search.met is not None

    @property
    def tool_calls(self) -> list[dict[str, str]]:
        """The tool calls so far: `name`, and `arguments` as JSON text."""
        return list(self._sent.get("tool_calls", ()))

    def message(self) -> dict[str, Any]:
        """Return the answer so far as OpenAI's message of the assistant, with `reasoning_content` if any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [called(each["name"], each["arguments"]) for each in self.tool_calls]
        return message

    def push(self, text: str) -> list[Delta]:
        """Add `text`, and return the additions to the answer in order. They may come with a later piece."""
        self._text += text
        if self._prompt is None:
            return self._send({"content": self._text})
        started = time.perf_counter()
        if started < self._due and not self._may_stop(text):
            return []
        deltas = self._send(_read(self._prompt, self._text, is_partial=True))
        now = time.perf_counter()
        self._due = now + (now - started) * (1 / READING_SHARE - 1)
        return deltas

    def finish(self) -> list[Delta]:
        """Return the remaining additions, also if a limit or the reader stopped the answer.

        An answer that does not follow the model's format is returned as plain content.
        """
        if self._prompt is None or self.stopped:
            return self._held()
        message = _read(self._prompt, self._text, is_partial=False)
        if message is None:
            message = _read(self._prompt, self._text, is_partial=True)
            if not self._adds(self._sent) and not self._adds(message):
                message = {"content": self._begun["content"] + self._text}
        return self._send(message) + self._held()

    def _may_stop(self, text: str) -> bool:
        """Return True if the last piece of text has the end of a stop string."""
        return any(each in self._text[-len(text) - len(each) + 1 :] for each in self._stops)

    def _adds(self, message: Mapping[str, Any] | None) -> bool:
        """Return True if it has tool calls, or more text than the message that the answer continues."""
        if message is None:
            return False
        return bool(message.get("tool_calls")) or any(
            _gain(self._begun[key], message.get(key) or "") for key in TEXTS
        )

    def _send(self, message: dict[str, Any] | None) -> list[Delta]:
        if message is None:
            return []
        sent, deltas = self._sent, list[Delta]()
        calls, now = sent.setdefault("tool_calls", []), message.get("tool_calls") or []
        n_begun = len(calls)
        for index, call in enumerate(now[:n_begun]):  # earlier calls end before later text begins
            deltas += self._send_call(calls, index, call["function"])
        for key in TEXTS:
            more = _gain(sent[key], message.get(key) or "")
            if more:
                sent[key] += more
                deltas += self._say(more) if key == "content" else [Delta(reasoning=more)]
        if self.stopped:
            return deltas
        for index, call in enumerate(now[n_begun:], n_begun):
            deltas += self._held() + self._send_call(calls, index, call["function"])
        return deltas

    def _say(self, text: str) -> list[Delta]:
        """Add to the content, up to a stop string. In white space behind reasoning, there is none."""
        blank = ""
        if not self._has_begun:
            blank = text[: len(text) - len(text.lstrip())] if self._sent["reasoning_content"] else ""
            self._has_begun = len(blank) < len(text)
        return self._added(blank + self._search.push(text[len(blank) :]))

    def _held(self) -> list[Delta]:
        """Return the end of the content that might have begun a stop string."""
        return self._added(self._search.rest())

    def _added(self, text: str) -> list[Delta]:
        self._content += text
        return [Delta(content=text)] if text else []

    @staticmethod
    def _send_call(calls: list[dict[str, str]], index: int, function: Mapping[str, str]) -> list[Delta]:
        if not function["name"]:  # the name has not come yet
            return []
        is_new = index == len(calls)
        if is_new:
            calls.append({"name": function["name"], "arguments": ""})
        more = _gain(calls[index]["arguments"], function["arguments"])
        calls[index]["arguments"] += more
        if not is_new and not more:
            return []
        return [Delta(index=index, name=function["name"] if is_new else "", arguments=more)]


def called(name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool as OpenAI's messages have it, with a new id."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _gain(sent: str, now: str) -> str:
    """Return the part of `now` after `sent`; "" if `now` does not begin with `sent`."""
    return now[len(sent) :] if now.startswith(sent) else ""


def _read(prompt: _core.ChatPrompt, text: str, *, is_partial: bool) -> dict[str, Any] | None:
    try:
        message: dict[str, Any] = json.loads(prompt.read(text, is_partial=is_partial))
    except InputError:
        return None
    return message


def _parameters(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("parameters") if isinstance(function, Mapping) else None


def _cause(error: InputError) -> str:
    """Return the message of a template's author or of the interpreter, without its trace."""
    text = one_line(str(error))
    place = re.search(r"at line \d+, column \d+", text)
    cause = text.rpartition("Error: ")[2]
    if cause == text or cause.startswith(_RAISED):
        return cause.removeprefix(_RAISED)
    return f"{cause} {place[0]}" if place else cause


def _dumped(request: Mapping[str, Any]) -> str:
    try:
        return (
            json.dumps(request, ensure_ascii=False)
            .encode("utf-8", "surrogatepass")
            .decode("utf-8", "replace")
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"the messages are not valid JSON: {one_line(str(error))}") from None
