"""Checks of a request before it enters the request queue."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from llama_cpp.server import types
from pydantic import ValidationError

from spac.config.grammar import of_schema
from spac.serve import embeddings
from spac.serve.choices import count_choices, prompts_of
from spac.serve.refusal import Refusal

REQUESTS = {
    "/v1/completions": types.CreateCompletionRequest,
    "/v1/engines/copilot-codex/completions": types.CreateCompletionRequest,
    "/v1/chat/completions": types.CreateChatCompletionRequest,
    "/extras/tokenize": types.TokenizeInputRequest,
    "/extras/tokenize/count": types.TokenizeInputRequest,
    "/extras/detokenize": types.DetokenizeInputRequest,
}
"""The requests that use the model, but embeddings, by path, and llama-cpp-python's types for them."""

CHAT_FIELDS: dict[str, tuple[type, str]] = {
    "parallel_tool_calls": (bool, "true or false"),
    "reasoning_effort": (str, "a word, such as low or high,"),
    "chat_template_kwargs": (dict, "an object"),
    "stream_options": (dict, "an object"),
    "logprobs": (bool, "true or false"),
    "continue_final_message": (bool, "true or false"),
}
"""Fields of chat requests that llama-cpp-python's server does not read: their types, and words for these."""

MOST_LOGPROBS = 20
"""The largest number of alternatives to a token, as in OpenAI's interface."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def checked(
    path: str, body: bytes, models: Collection[str] | None, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Return the request, and its body as llama-cpp-python's server understands it.

    `models` are the names that a request may give; None accepts any name.
    `defaults` apply where a request gives no value (`app.sampling_defaults`).
    Raise Refusal with a 4xx status.
    """
    request = parsed(body)
    if models is not None:
        check_model(path, request, models)
    if path in embeddings.PATHS:
        return embeddings.check(path, request), body
    if "prompt" in request or "messages" in request:
        request = {**defaults, **request}
    _check_limit(request)
    _translate(request)
    if path == "/v1/chat/completions":
        _check_messages(request)
        _check_types(request)
        if "top_logprobs" in request and not request.get("logprobs"):
            raise Refusal(400, "top_logprobs: logprobs has to be true with it", param="top_logprobs")
    elif REQUESTS[path] is types.CreateCompletionRequest:
        _constrain(request)
    _check_logprobs(request, "top_logprobs" if "messages" in request else "logprobs")
    # That server's type of prompts is a text. The served model takes the prompts from the request.
    prompts_of(request)
    known = request if isinstance(request.get("prompt", ""), str) else {**request, "prompt": ""}
    try:
        valid = REQUESTS[path].model_validate(known)
    except ValidationError as error:
        raise _first_fault(error) from None
    _check_choices(valid)
    if hasattr(valid, "n"):
        count_choices(request)
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal(400, "the body has half of a surrogate pair, which is no text") from None
    return request, json.dumps(known, ensure_ascii=False).encode()


def parsed(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object without its null fields; raise Refusal if the body is none."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise Refusal(400, "the body must be a JSON object")
    # A null field counts as absent: OpenAI's clients send null for what they leave open.
    return {name: value for name, value in request.items() if value is not None}


def _translate(request: dict[str, Any]) -> None:
    """Replace OpenAI's newer fields by those that llama-cpp-python's server knows."""
    if "max_completion_tokens" in request:
        request.setdefault("max_tokens", request.pop("max_completion_tokens"))
    form = request.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else "text"
    if kind not in ("text", "json_object", "json_schema"):
        text = f"response_format: the type {kind!r} is not text, json_object or json_schema"
        raise Refusal(400, text, param="response_format")
    if isinstance(form, dict) and kind == "json_schema":
        named = form.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if not isinstance(schema, dict):
            raise Refusal(400, "response_format: json_schema has no schema", param="response_format")
        request["response_format"] = {"type": "json_object", "schema": schema}


def _constrain(request: dict[str, Any]) -> None:
    """Replace a completion's `response_format` by a grammar, because that server has none for completions."""
    form = request.pop("response_format", {"type": "text"})
    if not isinstance(form, dict):
        raise Refusal(400, "response_format: an object is needed", param="response_format")
    if form.get("type") == "text":
        return
    if "grammar" in request:
        raise Refusal(400, "response_format: not with a grammar", param="response_format")
    request["grammar"] = of_schema(form.get("schema", {"type": "object"}), name="response_format: ")


def _check_limit(request: dict[str, Any]) -> None:
    """Raise Refusal for a limit below 1, by which llama_cpp means none."""
    for name in ("max_tokens", "max_completion_tokens"):
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # The request's type refuses these.
            if float(request.get(name, 1)) < 1:
                raise Refusal(400, f"{name}: a whole number of at least 1 is needed", param=name)


def check_model(path: str, request: dict[str, Any], models: Collection[str]) -> None:
    """Raise Refusal for a request that names another model than these."""
    name = request.get("model")
    if name is not None and name not in models and not path.startswith("/v1/engines/"):
        raise Refusal(
            404,
            f"the model '{name}' is not served here: {', '.join(models)} is",
            code="model_not_found",
            param="model",
        )


def _first_fault(error: ValidationError) -> Refusal:
    # A union puts its members' types into the location. Members for other roles report a literal_error.
    faults = error.errors()
    fault = next((each for each in faults if each["type"] != "literal_error"), faults[0])
    parts = [str(part) for part in fault["loc"]]
    where = ".".join(part for part in parts if part != "str" and not part[:1].isupper() and "[" not in part)
    return Refusal(400, f"{where}: {fault['msg']}", param=where or None)


def _check_choices(request: Any) -> None:
    """Raise Refusal for values that the server's types allow, and that the server does not support."""
    if getattr(request, "temperature", 0) < 0:
        raise Refusal(400, "temperature: must be at least 0", param="temperature")
    for token in getattr(request, "logit_bias", None) or ():
        if request.logit_bias_type != "tokens" and not token.isdecimal():
            raise Refusal(400, f"logit_bias: '{token}' is no token's number", param="logit_bias")


def _check_types(request: dict[str, Any]) -> None:
    """Raise Refusal if one of the `CHAT_FIELDS` has a wrong type."""
    for name, (kind, what) in CHAT_FIELDS.items():
        if name in request and not isinstance(request[name], kind):
            raise Refusal(400, f"{name}: {what} is needed", param=name)


def _check_logprobs(request: dict[str, Any], name: str) -> None:
    n = request.get(name, 0)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MOST_LOGPROBS:
        text = f"{name}: a number of alternatives from 0 to {MOST_LOGPROBS} is needed, not {json.dumps(n)}"
        raise Refusal(400, text, param=name)
    if name in request and request.get("echo"):
        text = "echo: not with logprobs here; spac.Llama(…, logits_all=True) does both"
        raise Refusal(400, text, param="echo")


def _check_messages(request: dict[str, Any]) -> None:
    """Raise Refusal for invalid messages; rename the role "developer" to "system", which templates know."""
    messages = request.get("messages")
    if not messages or not isinstance(messages, list):
        raise Refusal(400, "messages: a list of at least one is needed", param="messages")
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "developer":
            message["role"] = "system"
        elif role not in ROLES:
            raise Refusal(
                400, f"messages: the role '{role}' is not one of {', '.join(ROLES)}", param="messages"
            )
        if role == "assistant" and message.get("content") is None:
            message.pop("content", None)  # null is usual beside tool calls
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "image_url"):
                text = f"messages: only text and images can be read here, not a part of type {kind!r}"
                raise Refusal(400, text, param="messages")
            if kind == "image_url" and role == "system":
                raise Refusal(400, "messages: a system prompt has no images", param="messages")
