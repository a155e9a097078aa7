"""The server makes embeddings beside chats: forms, usage, refusals, and conversations that stay."""

from __future__ import annotations

import numpy as np
import pytest

PATH = "/v1/embeddings"
TEXTS = ["def add(a, b):", "import os"]


@pytest.fixture(scope="module")
def vectors(server):
    return vectors_of(server.post(PATH, input=TEXTS)["data"])


def vectors_of(data):
    return np.array([np.ravel(each["embedding"]) for each in data], np.float32)


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
    tokens = [server.post("/tokenize", content=text, add_special=True)["tokens"] for text in TEXTS]
    made = server.post(PATH, input=tokens)
    np.testing.assert_array_equal(vectors_of(made["data"]), vectors)
    n_tokens = sum(map(len, tokens))
    assert made["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    np.testing.assert_array_equal(vectors_of(server.post(PATH, input=tokens[0])["data"]), vectors[:1])


def test_llama_servers_form(server, vectors):
    for path, name in (("/embedding", "content"), ("/embeddings", "input"), (PATH, "content")):
        made = server.post(path, **{name: TEXTS})
        assert [each["index"] for each in made] == [0, 1]
        np.testing.assert_array_equal(vectors_of(made), vectors)


def test_a_conversation_stays(server):
    asked = {"prompt": "class Tree:\n    def grow(self):\n", "max_tokens": 4, "temperature": 0}
    first = server.post("/v1/completions", asked)
    assert server.post(PATH, input="something else")["usage"]["prompt_tokens"] > 0
    again = server.post("/v1/completions", asked)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
