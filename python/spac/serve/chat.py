"""Chat requests of the server: what they say beyond llama_cpp's arguments comes with the request context."""

from __future__ import annotations

from typing import Any

from spac.llama_cpp_python.chat_handler import ChatHandler
from spac.serve.request_context import REQUEST_CONTEXT


class ServedChat(ChatHandler):
    """The handler of a served model."""

    def __call__(self, *, llama: Any, **given: Any) -> Any:
        """As `ChatHandler`'s."""
        context = REQUEST_CONTEXT.get()
        context.at_end(lambda: llama.preserve_tokens(()))  # a stream that was left is closed at any time
        return super().__call__(llama=llama, request=context.request, **given)
