"""Changes to lists of messages for templates: the message to continue, a system prompt's place, images."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from spac.errors import InputError, one_line
from spac.model.images import NO_PROJECTOR

DATA = re.compile(r"data:[\w.+/-]*(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII)
MOST_BYTES = 64 * 2**20
"""The largest image that is fetched."""
TIMEOUT_S = 15


def split_begun(messages: Sequence[Any], thinking: bool) -> tuple[list[Any], dict[str, Any] | None]:
    """Return the messages before the one that the answer continues, and that one or None.

    Raise InputError if the last message cannot be continued.
    """
    if not messages or not _is_assistants(messages[-1]):
        return list(messages), None
    *before, last = messages
    if before and _is_assistants(before[-1]):
        raise InputError("messages: the last two are the assistant's, and only one can be continued")
    if last.get("tool_calls"):
        raise InputError(
            "messages: a call of tools cannot be continued: its result, of the role tool, is due"
        )
    if not text_of(last) and not last.get("reasoning_content"):
        return before, None
    if not text_of(last) and not thinking:
        raise InputError("messages: the last one has a reasoning to continue, and reasoning is turned off")
    return before, {**last, "content": last.get("content") or ""}


def _is_assistants(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content, also if the content is in parts."""
    content = message.get("content") or ""
    if not isinstance(content, list):
        return str(content)
    texts = (part.get("text") or "" for part in content if isinstance(part, Mapping))
    return "\n\n".join(map(str, texts))  # the library joins them so


def folded(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with the system prompt at the beginning of the first message.

    This is for templates that have no place for a system prompt.
    """
    if len(messages) < 2 or not all(isinstance(message, Mapping) for message in messages[:2]):
        return list(messages)
    system, first, *others = messages
    contents = [system.get("content") or "", first.get("content") or ""]
    if system.get("role") not in ("system", "developer") or not all(
        isinstance(content, str | list) for content in contents
    ):
        return list(messages)
    if all(isinstance(content, str) for content in contents):
        return [{**first, "content": "\n".join(contents)}, *others]
    return [{**first, "content": [part for content in contents for part in _parts(content)]}, *others]


def _parts(content: str | list[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def has_images(messages: Sequence[Any]) -> bool:
    """Return True if a message has an image among the parts of its content."""
    return any(_is_image(part) for message in messages for part in _parts_of(message))


def with_markers(
    messages: Sequence[Any], marker: str | None, *, fetches: bool
) -> tuple[list[Any], list[bytes]]:
    """Return the messages with a marker in the place of each image, and the images' bytes.

    A `marker` of None means that the model sees no images. With `fetches`, http and https addresses are
    fetched. Raise InputError for images that cannot be had.
    """
    images: list[bytes] = []

    def replaced(part: Any) -> Any:
        if not _is_image(part):
            return part
        if marker is None:
            raise InputError(NO_PROJECTOR)
        images.append(image_at(_address(part), fetches=fetches))
        return {"type": "media_marker", "text": marker}

    return [
        {**message, "content": [replaced(part) for part in _parts_of(message)]}
        if _parts_of(message)
        else message
        for message in messages
    ], images


def _parts_of(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def _address(part: Mapping[str, Any]) -> str:
    given = part.get("image_url")
    address = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(address, str):
        raise InputError("an image_url needs a url")
    return address


def image_at(address: str, *, fetches: bool) -> bytes:
    """Return the bytes of an image at a data: address, or with `fetches` also at an http or https one.

    Raise InputError for other addresses, and if there is no image.
    """
    if address.startswith("data:"):
        head = DATA.match(address)
        if head is None:
            raise InputError("an image's data: address needs base64: data:image/png;base64,...")
        try:
            return base64.b64decode(address[head.end() :], validate=True)
        except binascii.Error as error:
            raise InputError(f"an image's data is not valid base64: {error}") from None
    kind = address.partition(":")[0]
    if kind not in ("http", "https"):
        raise InputError(f"an image at {one_line(address)[:40]!r} cannot be read: send it as a data: address")
    if not fetches:
        raise InputError(f"images are not fetched from {kind} addresses here: send a data: address")
    return _fetched(address)


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            data = bytes(answer.read(MOST_BYTES + 1))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"the image at {one_line(address)[:80]} cannot be fetched: {reason}") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"the image at {one_line(address)[:80]} has more than {MOST_BYTES >> 20} MB")
    return data
