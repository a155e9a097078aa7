"""Work on requests before llama.cpp's handlers see them: limits of schemas and grammars, tools, images."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spac import _core
from spac.config.schema_limits import check_schemas
from spac.engine.chat_messages import image_at
from spac.serve import forms
from spac.serve.refusal import Refusal

if TYPE_CHECKING:
    from spac.engine import Engine
    from spac.model.c_api import Model

_OBJECTS = (
    "response_format", "stream_options", "chat_template_kwargs", "thinking", "output_config", "reasoning"
)  # fmt: skip
_TYPES: dict[str, tuple[Any, str]] = {
    "grammar": (str, "a text"),
    "stop": (str | list, "a text, or a list of texts"),
    "samplers": (str | list, "a list of names, or a text of their letters"),
    "logit_bias": (dict | list, "an object of tokens, or a list of pairs"),
    "tools": (list, "a list"),
    "parallel_tool_calls": (bool, "true or false"),
    "instructions": (str, "a text"),
    "system": (str | list, "a text, or a list of blocks"),
    "reasoning_effort": (str, "a text"),
    **dict.fromkeys(_OBJECTS, (dict, "an object")),
}
"""The types of fields that llama.cpp passes over where they have another one."""


class TextLimits:
    """The limits of what a request asks to be read, which are checked before anything is tokenized."""

    MOST_TEXTS = 2048
    """The most texts of one request, as with OpenAI's embeddings."""

    def __init__(self, engine: Engine) -> None:
        """Take the context and the vocabulary of an engine."""
        self.model, self._context = engine.target, engine.context

    @functools.cached_property
    def most_bytes(self) -> int:
        """The bytes of text that the context holds if every token is the longest one of the vocabulary."""
        longest = max(len(self.model.piece(token, special=True)) for token in range(self.model.n_tokens))
        return self._context * max(1, longest)

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise Refusal for too many texts or messages, and for a text that cannot fit the context."""
        for name in ("prompt", "input", "content", "documents", "texts"):
            given = request.get(name)
            is_one = not isinstance(given, list) or all(type(each) is int for each in given)
            texts: list[Any] = [given] if is_one else list(given or ())
            if len(texts) > self.MOST_TEXTS and not any(isinstance(each, dict) for each in texts):
                raise Refusal(400, f"{name} has {len(texts)} texts, and {self.MOST_TEXTS} are the most")
            for text in texts:
                self._check_bytes(_n_bytes(text))
        messages = [each for name in ("messages", "input") for each in _list(request.get(name))]
        messages = [each for each in messages if isinstance(each, Mapping)]
        if len(messages) > self._context:
            self._refuse(f"there are {len(messages)} messages")
        self._check_bytes(sum(_n_bytes(each.get("content")) for each in messages))
        for name in ("system", "instructions"):
            self._check_bytes(_n_bytes(request.get(name)))

    def _check_bytes(self, n: int) -> None:
        if n > self._context and n > self.most_bytes:  # the second one reads the vocabulary
            self._refuse(f"the text has {n} bytes")

    def _refuse(self, what: str) -> None:
        raise Refusal(400, f"this model's maximum context length is {self._context} tokens: {what}")


def _n_bytes(text: Any) -> int:
    """Return the bytes of a text, or of a list of texts and of parts of text; 0 for anything else."""
    if isinstance(text, str):
        return len(text.encode("utf-8", "surrogatepass"))
    if isinstance(text, list):
        return sum(map(_n_bytes, text))
    return _n_bytes(text.get("text")) if isinstance(text, Mapping) else 0


def checked(path: str, body: bytes, limits: TextLimits, names: Collection[str] | None) -> bytes:
    """Return a request's body in the form that llama.cpp reads, with the tools that its choice names.

    `path` is that of the interface. A request may name the models `names` alone, or any with None. Raise
    Refusal or InputError for a body that is no object, that exceeds a limit, or that asks for what nobody
    honours.
    """
    request = parsed(body)
    name = request.get("model")
    if names is not None and name is not None and name not in names:
        raise Refusal(404, f"the model '{name}' is not served here: {', '.join(names)} is")
    for field, (types, wanted) in _TYPES.items():
        if not isinstance(request.get(field), types | None):
            raise Refusal(400, f"{field} must be {wanted}")
    _check_bias(request.get("logit_bias"))
    for field in ("stop", "stop_sequences"):
        if (stops := request.get(field)) == "" or (isinstance(stops, list) and "" in stops):
            request[field] = [each for each in stops if each != ""]  # it would end each answer at once
            body = json.dumps(request).encode()
    if isinstance(grammar := request.get("grammar"), str):
        _core.check_grammar(limits.model.pointer, grammar)
    limits.check(request)
    check_schemas(list(_schemas(request)))
    return formed(path, body, request)


def formed(path: str, body: bytes, request: dict[str, Any] | None = None) -> bytes:
    """Return a request's body in the form that llama.cpp reads. `request` is its object, if that is known.

    Raise Refusal as `checked` does.
    """
    if not forms.reads(path):
        return body
    request = parsed(body) if request is None else request
    forms.read(path, request)
    _choose_tools(request, is_anthropics=path.startswith(forms.MESSAGES))
    return json.dumps(request).encode()


def _check_bias(bias: Any) -> None:
    """Raise Refusal for a bias that llama.cpp passes over."""
    pairs = list(bias.items()) if isinstance(bias, dict) else _list(bias)
    for pair in pairs:
        value = pair[1] if isinstance(pair, list | tuple) and len(pair) == 2 else None
        if value is True or not isinstance(value, int | float):
            raise Refusal(400, "logit_bias: the bias of a token must be a number or false")


def _choose_tools(request: dict[str, Any], *, is_anthropics: bool) -> None:
    """Leave the tools that `tool_choice` names, and require a call of them.

    llama.cpp reads a choice by name as "auto". Raise Refusal if it names a tool that is not there, and if a
    call is required without a tool.
    """
    choice = request.get("tool_choice")
    if not isinstance(choice, dict) or (is_anthropics and choice.get("type") in ("auto", "any", "none")):
        if choice in ("required", {"type": "any"}) and request.get("tools") in (None, []):
            raise Refusal(400, "tool_choice requires a call, and there is no tool that can be called here")
        return
    asks = "required"
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)  # chats have an object more than Responses
        names = [_name_of(each) for each in _list(_at({"it": allowed}, "it").get("tools"))]
        asks = str(_at({"it": allowed}, "it").get("mode", "auto"))
    else:
        names = [_name_of(choice)]
        request.setdefault("parallel_tool_calls", False)  # a named tool is called once
    tools = [each for each in _list(request.get("tools")) if isinstance(each, Mapping)]
    known = {_name_of(each): each for each in tools}
    for name in names:
        if name is None or name not in known:
            raise Refusal(400, f"tool_choice names {name or choice.get('type')}, which is none of the tools")
    request["tools"] = [known[name] for name in names]
    request["tool_choice"] = {"type": "any"} if choice.get("type") == "tool" else asks


def _name_of(tool: Any) -> str | None:
    """Return the name of a tool, or of a choice, in the form of any of the interfaces."""
    if not isinstance(tool, Mapping):
        return None
    name = (_at(tool, "function") or _at(tool, "custom") or tool).get("name")
    return name if isinstance(name, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def check_tokens(body: bytes, model: Model) -> None:
    """Raise Refusal for tokens that the vocabulary does not have."""
    tokens = _list(parsed(body).get("tokens"))
    if any(type(each) is int and not 0 <= each < model.n_tokens for each in tokens):
        raise Refusal(400, f"tokens must be from 0 to {model.n_tokens - 1}")


def parsed(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object; raise Refusal if the body is none."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise Refusal(400, "the body must be a JSON object")
    return request


def with_images(body: bytes) -> bytes:
    """Return a request's body with the images at http and https addresses fetched, as data: addresses.

    Raise InputError for images that cannot be had.
    """
    request = parsed(body)
    _fetch(request)
    return json.dumps(request).encode()


def _fetch(value: Any) -> None:
    """Fetch the images in a request of any of the interfaces, and put them into it."""
    if isinstance(value, list):
        for each in value:
            _fetch(each)
    elif isinstance(value, dict):
        for name in ("messages", "input", "content", "source", "image_url"):
            _fetch(value.get(name))
        for name in ("image_url", "url"):
            address = value.get(name)
            if isinstance(address, str) and address.startswith(("http://", "https://")):
                image = base64.b64encode(image_at(address, fetches=True)).decode()
                value[name] = f"data:image/png;base64,{image}"


def _schemas(request: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the JSON schemas of a request in any of the interfaces."""
    yield request.get("json_schema")
    form = _at(request, "response_format")
    yield form.get("schema")
    yield form.get("json_schema")
    yield _at(form, "json_schema").get("schema")
    for name in ("text", "output_config"):  # of Responses, and of Anthropic's messages
        yield _at(_at(request, name), "format").get("schema")
    yield _at(request, "output_format").get("schema")
    tools = request.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, Mapping):
            yield _at(tool, "function").get("parameters")
            yield tool.get("parameters")
            yield tool.get("input_schema")


def _at(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a member that is an object; an empty one for anything else."""
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}
