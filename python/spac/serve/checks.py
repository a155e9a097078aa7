"""Work on requests before llama.cpp's handlers see them: limits of schemas and grammars, images' data."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from spac import _core
from spac.chat.messages import image_at
from spac.config.schema_limits import check_schemas
from spac.serve.refusal import Refusal


def check(body: bytes, model: int, names: Collection[str] | None) -> None:
    """Raise Refusal or InputError for a request's body that is no object, or that exceeds a limit.

    `model` is the address of the target's llama_model. A request may name the models `names` alone, or any
    with None.
    """
    request = parsed(body)
    name = request.get("model")
    if names is not None and name is not None and name not in names:
        raise Refusal(404, f"the model '{name}' is not served here: {', '.join(names)} is")
    if isinstance(grammar := request.get("grammar"), str):
        _core.check_grammar(model, grammar)
    check_schemas(list(_schemas(request)))


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
