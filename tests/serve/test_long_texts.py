"""A word of 60,000 letters ends no door of the server, with a pre-tokenizer that recurses once a letter."""

from __future__ import annotations

import pytest

from tests.serve.conftest import FIXED, Server

WORD = "a" * 60_000
OVERRIDE = ("--override-kv", "tokenizer.ggml.pre=str:gpt-4o")
MESSAGES = [{"role": "user", "content": WORD}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server of its own: a text that recurses would end it."""
    options = ("--ctx", "1024", "--embeddings", "--pooling", "last", *OVERRIDE)
    server = Server(tmp_path_factory.mktemp("long"), *options, fixed=FIXED)
    yield server
    server.kill()


def test_tokenize(server):
    assert len(server.post("/tokenize", content=WORD)["tokens"]) > 1_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": WORD}), ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/messages", {"messages": MESSAGES}), ("/v1/responses", {"input": WORD}),
        ("/v1/embeddings", {"input": WORD}),
    ],
)  # fmt: skip
def test_what_exceeds_the_context_is_refused(server, path, body):
    server.post(path, {"model": "demo", "max_tokens": 4, **body}, status=400)
    assert server.answers()
