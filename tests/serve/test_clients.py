"""LangChain and LiteLLM work with the server as with OpenAI's: chats, streams, embeddings."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.serve.conftest import KEY
from tests.serve.test_chat import REASONED

HERE = Path(__file__).parent
TEXTS = ["def add(a, b):", "import os"]


@pytest.mark.parametrize(("client", "package"), [("langchain", "langchain_openai"), ("litellm", "litellm")])
def test_a_client(server, thinking_server, client, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[test]' brings it")
    given = {
        "chats": thinking_server.url, "embeddings": server.url, "key": KEY, "texts": TEXTS,
        "saying": f"root ::= {json.dumps(REASONED)}",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(HERE / f"{client}_client.py"), json.dumps(given)],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["answer"] == "".join(made["parts"]) == "hi there"
    assert len(made["parts"]) > 1
    assert made["n_in"] > 1
    data = json.loads(server.ask("POST", "/v1/embeddings", {"input": TEXTS})[1])["data"]
    np.testing.assert_array_equal(
        np.float32(made["vectors"]), np.float32([each["embedding"] for each in data])
    )
