"""The server makes embeddings beside chats: forms, usage, refusals, and conversations that stay."""

from __future__ import annotations

import json

import numpy as np
import pytest

PATH = "/v1/embeddings"
TEXTS = ["def add(a, b):", "import os"]


def ask(server, path=PATH, **request):
    """Return the answer, or the message of a refusal."""
    status, answer = server.ask("POST", path, request)
    assert status in (200, 400)
    made = json.loads(answer)
    return made if status == 200 else made["error"]["message"]


@pytest.fixture(scope="module")
def vectors(server):
    return np.array([each["embedding"] for each in ask(server, input=TEXTS)["data"]], np.float32)


def test_openais_client(server, vectors):
    """It asks for base64 if its user does not say, and makes numbers of it."""
    client = server.client()
    made = client.embeddings.create(model="demo", input=TEXTS)
    assert (made.model, [each.index for each in made.data]) == ("demo", [0, 1])
    np.testing.assert_array_equal([each.embedding for each in made.data], vectors)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01
    [one] = client.embeddings.create(model="demo", input=TEXTS[1], encoding_format="float").data
    np.testing.assert_array_equal(np.float32(one.embedding), vectors[1])


def test_tokens_and_their_number(server, vectors):
    tokens = [ask(server, "/tokenize", content=text, add_special=True)["tokens"] for text in TEXTS]
    made = ask(server, input=tokens)
    np.testing.assert_array_equal([np.float32(each["embedding"]) for each in made["data"]], vectors)
    n_tokens = sum(map(len, tokens))
    assert made["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    np.testing.assert_array_equal(
        np.float32(ask(server, input=tokens[0])["data"][0]["embedding"]), vectors[0]
    )


def test_llama_servers_form(server, vectors):
    for path, name in (("/embedding", "content"), ("/embeddings", "input"), (PATH, "content")):
        made = ask(server, path, **{name: TEXTS})
        assert [each["index"] for each in made] == [0, 1]
        np.testing.assert_array_equal([np.float32(each["embedding"][0]) for each in made], vectors)


def test_a_conversation_stays(server):
    asked = {"prompt": "class Tree:\n    def grow(self):\n", "max_tokens": 4, "temperature": 0}
    first = ask(server, "/v1/completions", **asked)
    assert ask(server, input="something else")["usage"]["prompt_tokens"] > 0
    again = ask(server, "/v1/completions", **asked)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": {"a": 1}}, "prompt"),
        ({"input": [10**6]}, "token"), ({"input": [5] * 2049}, "exceeds the available context size"),
        ({"input": "x", "encoding_format": "hex"}, "float or base64"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be(server, request_, reason):
    assert reason in ask(server, **request_)
