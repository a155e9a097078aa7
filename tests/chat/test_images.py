"""`/image FILE` shows an image with the next message, and the conversation keeps it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from spac.chat.commands import run_command
from spac.chat.conversation import Conversation
from spac.chat.dialogue import Dialogue
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.engine.chat_messages import image_at
from spac.errors import InputError
from tools.models import write_projector
from tools.models.projector import png


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    mmproj = write_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", "qwen3vl", 64)
    sampling = SamplingConfig(temp=0, ignore_eos=True)
    config = EngineConfig(
        tiny_model("qwen3vlmoe"), mmproj=mmproj, device="cpu", threads=1, ctx=256, sampling=sampling
    )
    with Engine(config) as engine:
        yield engine


def opened(engine):
    return Dialogue(engine, ChatFormat(engine.target), Conversation(), 8)


def said(dialogue, text):
    return "".join(piece.text for piece in dialogue.answer(text))


def test_an_image_goes_with_one_message(engine, tmp_path):
    (tmp_path / "a.png").write_bytes(png(64, 96))
    dialogue = opened(engine)
    plain = said(dialogue, "look")
    assert run_command(dialogue, "/reset")
    assert run_command(dialogue, f"/image {tmp_path / 'a.png'}") == "a.png goes with the next message"
    seen = said(dialogue, "look")
    assert seen != plain
    [exchange] = dialogue.conversation.exchanges
    assert (len(exchange.images), dialogue.images) == (1, [])
    said(dialogue, "more")
    assert dialogue.generation.stats.cached_tokens > 24  # the image's, which are not evaluated again
    run_command(dialogue, f"/save {tmp_path / 'talk.json'}")
    again = opened(engine)
    run_command(again, f"/load {tmp_path / 'talk.json'}")
    assert again.conversation == dialogue.conversation
    message = engine.chat(Conversation().messages("look", images=exchange.images), 8).message()
    assert message["content"].lstrip() == seen, "a chat of the engine sees it too"


def test_what_cannot_be_shown(engine, tmp_path, tiny_model):
    (tmp_path / "a.png").write_bytes(b"no image")
    dialogue = opened(engine)
    for name, words in (("a.png", "image cannot be decoded"), ("b.png", "the image cannot be read")):
        with pytest.raises(InputError, match=words):
            run_command(dialogue, f"/image {tmp_path / name}")
    (tmp_path / "a.png").write_bytes(png(8, 8))
    with (
        Engine(EngineConfig(tiny_model("qwen3moe"), device="cpu", threads=1, ctx=256)) as blind,
        pytest.raises(InputError, match="sees no images: start with --mmproj"),
    ):
        run_command(opened(blind), f"/image {tmp_path / 'a.png'}")


def test_images_are_fetched_if_that_is_allowed():
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/a.png" else 404)
            self.end_headers()
            self.wfile.write(png(8, 8))

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert image_at(f"{address}/a.png", fetches=True) == png(8, 8)
        with pytest.raises(InputError, match=r"/b\.png cannot be fetched: .*Not Found"):
            image_at(f"{address}/b.png", fetches=True)
        with pytest.raises(InputError, match="images are not fetched from http addresses here"):
            image_at(f"{address}/a.png", fetches=False)
        server.shutdown()
    with pytest.raises(InputError, match="cannot be read: send it as a data: address"):
        image_at("file:///etc/hostname", fetches=True)
