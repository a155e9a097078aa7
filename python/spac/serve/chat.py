"""The handler of chat requests; it reads fields beyond llama_cpp's arguments from the request context."""

from __future__ import annotations

from typing import Any

from spac.llama_cpp_python.chat_handler import ChatHandler
from spac.serve.request_context import REQUEST_CONTEXT


class ServedChat(ChatHandler):
    """Handles the chat requests of a served model."""

    def __call__(self, *, llama: Any, **given: Any) -> Any:
        """Answer a chat request, as `ChatHandler` does."""
        context = REQUEST_CONTEXT.get()
        # An abandoned stream may be closed late, so the request's end resets the tokens.
        context.at_end(lambda: llama.preserve_tokens(()))
        return super().__call__(llama=llama, request=context.request, **given)
