"""A server with a projector takes images in each of its interfaces."""

from __future__ import annotations

import base64
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai
import pytest

from tests.serve.conftest import Server
from tools.models import write_projector
from tools.models.projector import png

DATA = [base64.b64encode(png(64, 96, seed)).decode() for seed in (1, 2)]
LETTERS = {"grammar": "root ::= [a-z]+"}
URLS = [f"data:image/png;base64,{data}" for data in DATA]


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    mmproj = write_projector(tmp_path_factory.mktemp("seeing") / "mmproj.gguf", "qwen3vl", 64)
    return ("--target", str(tiny_model("qwen3vlmoe")), "--mmproj", str(mmproj), "--ctx", "512", "--temp", "0")


@pytest.fixture(scope="module")
def seeing(models, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), *models) as server:
        yield server


def chat(server: Server, url: str, **more: object) -> str:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "look"}]
    messages = [{"role": "user", "content": parts}]
    made = server.client().chat.completions.create(
        model="x", messages=messages, max_tokens=12, extra_body=LETTERS, **more
    )
    if more.get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)
    return str(made.choices[0].message.content)


def test_every_interface_sees(seeing):
    one, two = (chat(seeing, url) for url in URLS)
    assert one != two
    assert chat(seeing, URLS[1], stream=True) == two
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA[0]}}
    content = [image, {"type": "text", "text": "look"}]
    asked = {"model": "x", "messages": [{"role": "user", "content": content}]}
    message = seeing.anthropic().messages.create(max_tokens=12, **asked)
    n_tokens = seeing.anthropic().messages.count_tokens(**asked).input_tokens
    usage = message.usage
    assert n_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 24  # 24 are the image's


def test_properties_and_refusals(seeing):
    assert seeing.get("/props")["modalities"]["vision"] is True
    for url, words in (
        ("https://example.com/a.png", "images are not fetched from https addresses here"),
        ("data:image/png;base64,AAAA", "image cannot be decoded"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=words) as refused:
                chat(seeing, url, stream=stream)
            assert "\n" not in refused.value.body["message"]
    assert chat(seeing, URLS[0])


class Pictures(BaseHTTPRequestHandler):
    """Answers with the first picture."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/a.png" else 404)
        self.end_headers()
        self.wfile.write(base64.b64decode(DATA[0]))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def in_a_message(server: Server, url: str) -> str:
    """Return the answer in Anthropic's interface."""
    data = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    source = data if url.startswith("data:") else {"type": "url", "url": url}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "look"}]
    message = server.anthropic().messages.create(
        model="x", messages=[{"role": "user", "content": content}], max_tokens=12
    )
    return str(message.content[0].text)


def in_a_response(server: Server, url: str) -> str:
    """Return the answer in the interface of Responses."""
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "look"}]
    given = [{"role": "user", "content": parts}]
    response = server.client().responses.create(model="x", input=given, max_output_tokens=12)
    return str(response.output_text)


def test_it_sees_what_is_fetched(models, tmp_path):
    with (
        Server(tmp_path, *models, "--image-urls") as server,
        HTTPServer(("127.0.0.1", 0), Pictures) as pictures,
    ):
        threading.Thread(target=pictures.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{pictures.server_port}/a.png"
        for see in (chat, in_a_message, in_a_response):
            assert see(server, url) == see(server, URLS[0]) != see(server, URLS[1])
        with pytest.raises(openai.BadRequestError, match=r"b\.png cannot be fetched"):
            chat(server, url.replace("a.png", "b.png"))
        pictures.shutdown()
