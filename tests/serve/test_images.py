"""A server with a projector takes images in each of its interfaces."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import openai
import pytest

from tests.conftest import TinyModel
from tests.serve.conftest import Server
from tools.models import write_projector
from tools.models.projector import png

DATA = [base64.b64encode(png(64, 96, seed)).decode() for seed in (1, 2)]
LETTERS = {"grammar": "root ::= [a-z]+"}
URLS = [f"data:image/png;base64,{data}" for data in DATA]


@pytest.fixture(scope="module")
def seeing(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("seeing")
    mmproj = write_projector(folder / "mmproj.gguf", "qwen3vl", 64)
    models = ("--target", str(tiny_model("qwen3vlmoe")), "--mmproj", str(mmproj))
    server = Server(folder, *models, "--ctx", "512", "--temp", "0")
    yield server
    assert server.stop() == 0


def chat(server: Server, url: str, **more: object) -> str:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "look"}]
    messages = [{"role": "user", "content": parts}]
    made = server.client().chat.completions.create(
        model="x", messages=messages, max_tokens=12, extra_body=LETTERS, **more
    )  # type: ignore[call-overload]
    if more.get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)
    return str(made.choices[0].message.content)


def test_every_interface_sees(seeing: Server) -> None:
    one, two = (chat(seeing, url) for url in URLS)
    assert one != two
    assert chat(seeing, URLS[1], stream=True) == two
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA[0]}}
    content = [image, {"type": "text", "text": "look"}]
    asked = {"model": "x", "messages": [{"role": "user", "content": content}]}
    message = seeing.anthropic().messages.create(max_tokens=12, extra_body=LETTERS, **asked)  # type: ignore[arg-type]
    assert message.content[0].text == one  # type: ignore[union-attr]
    n_tokens = seeing.anthropic().messages.count_tokens(**asked).input_tokens  # type: ignore[arg-type]
    usage = message.usage
    assert n_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 24  # 24 are the image's
    parts = [{"type": "input_image", "image_url": URLS[0]}, {"type": "input_text", "text": "look"}]
    given = [{"role": "user", "content": parts}]
    response = seeing.client().responses.create(
        model="x", input=given, max_output_tokens=12, extra_body=LETTERS
    )  # type: ignore[call-overload]
    assert response.output_text == one


def test_properties_and_refusals(seeing: Server) -> None:
    status, body = seeing.ask("GET", "/props")
    assert (status, json.loads(body)["modalities"]["vision"]) == (200, True)
    for url, words in (
        ("https://example.com/a.png", "images are not fetched from https addresses here"),
        ("data:image/png;base64,AAAA", "image cannot be decoded"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=words) as refused:
                chat(seeing, url, stream=stream)
            assert "\n" not in refused.value.body["message"]  # type: ignore[index]
    assert chat(seeing, URLS[0])
