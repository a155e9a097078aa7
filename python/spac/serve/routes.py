"""The paths of the server, and the names of llama.cpp's handlers for them."""

from __future__ import annotations

from spac.serve.state import OPEN_TO_ALL

READS = {
    "/health": "health", "/v1/health": "health", "/props": "props", "/slots": "slots",
    "/v1/models": "v1/models", "/lora-adapters": "lora-adapters",
}  # fmt: skip
"""The routes of GET by path."""
ANSWERS = {
    "/completion": "completion", "/v1/completions": "v1/completions",
    "/v1/chat/completions": "v1/chat/completions", "/v1/responses": "v1/responses",
    "/v1/messages": "v1/messages", "/infill": "infill", "/embedding": "embedding",
    "/v1/embeddings": "v1/embeddings", "/v1/rerank": "v1/rerank",
}  # fmt: skip
"""The routes of POST that use a slot, by path. They wait in the queue."""
TOOLS = {
    "/props": "set-props", "/tokenize": "tokenize", "/detokenize": "detokenize",
    "/apply-template": "apply-template", "/v1/chat/completions/control": "v1/chat/completions/control",
    "/v1/messages/count_tokens": "v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens": "v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens": "v1/responses/input_tokens", "/lora-adapters": "set-lora-adapters",
}  # fmt: skip
"""The other routes of POST."""
COUNTS = tuple(path for path in TOOLS if path.endswith(("_tokens", "template")))
"""The routes that read a chat and need no slot."""
SHORT = {
    "/chat/completions": "/v1/chat/completions", "/responses": "/v1/responses", "/models": "/v1/models",
    "/completions": "/completion", "/embeddings": "/embedding", "/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank", "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/responses/input_tokens": "/v1/responses/input_tokens",
}  # fmt: skip
"""llama-server's other paths of routes."""
METHODS = ("GET", "POST", "DELETE", "OPTIONS")
"""The methods that pages of other origins may use, as with llama-server."""
POLLED = {*OPEN_TO_ALL, "/metrics"}
"""Paths that monitors ask for every few seconds. The log leaves them out."""
