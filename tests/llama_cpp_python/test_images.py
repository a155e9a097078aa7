"""`spac.Llama` sees images, in chats of its own format and with llama_cpp's chat handlers."""

from __future__ import annotations

import base64
from contextlib import closing

import pytest

from spac.config import SamplingConfig
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import SMALL
from tools.models import write_projector
from tools.models.projector import png

IMAGES = (png(64, 96, 1), png(80, 48, 2))
GREEDY = {"temperature": 0.0, "max_tokens": 10, "repeat_penalty": 1.0}


def message(image: bytes, text: str = "look") -> dict:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory):
    return write_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", "qwen3vl", 64)


@pytest.fixture(scope="module")
def path(tiny_model):
    return tiny_model("qwen3vlmoe")


OPTIONS = {**SMALL, "n_ctx": 512, "device": "simulated"}


@pytest.fixture(scope="module")
def llm(path, mmproj):
    with closing(Llama(str(path), chat_format="common", mmproj=str(mmproj), **OPTIONS)) as llm:
        yield llm


def said(llm: Llama, *messages: dict, **more: object) -> str:
    made = llm.create_chat_completion(list(messages), **GREEDY, **more)
    return str(made["choices"][0]["message"]["content"])


def test_a_chat_sees(llm):
    first, second = (said(llm, message(image)) for image in IMAGES)
    assert first != second
    assert said(llm, message(IMAGES[0])) == first
    assert llm.stats.cached_tokens > 0
    chunks = llm.create_chat_completion([message(IMAGES[1])], stream=True, **GREEDY)
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    # llama_cpp's streams lose some bytes of random text that is no UTF-8.
    assert streamed.encode("ascii", "ignore") == second.encode("ascii", "ignore")
    assert said(llm, {"role": "user", "content": "look"}) not in (first, second)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_what_is_seen(llm, *, stream):
    expected = said(llm, message(IMAGES[0]))
    asked = {**GREEDY, "logprobs": True, "top_logprobs": 2, "stream": stream}
    made = llm.create_chat_completion([message(IMAGES[0])], **asked)
    choices = [part["choices"][0] for part in (made if stream else [made])]
    places = [place for each in choices if each["logprobs"] for place in each["logprobs"]["content"]]
    text = b"".join(bytes(place["bytes"]) for place in places)
    assert text.decode("utf-8", "ignore") == expected
    assert len(places) >= GREEDY["max_tokens"]  # More, if the last character needs them.
    assert all(place["top_logprobs"][0]["logprob"] == place["logprob"] < 0 for place in places)


def test_llama_cpps_chat_handlers(llm, path, mmproj):
    from llama_cpp.llama_chat_format import Llava15ChatHandler

    handler = Llava15ChatHandler(str(mmproj), verbose=False)
    text = f"{handler.DEFAULT_SYSTEM_MESSAGE}USER: <__media__>lookASSISTANT: "
    prompt = llm.engine.image_prompt(text, IMAGES[:1])
    expected = "".join(llm.engine.generate(prompt, 10, sampling=SamplingConfig(temp=0)))
    with closing(Llama(str(path), chat_handler=handler, **OPTIONS)) as with_handler:
        assert said(with_handler, message(IMAGES[0])) == expected.replace("\ufffd", "")
        assert said(with_handler, message(IMAGES[1])) != expected


def test_what_is_refused(llm, path):
    for url, words in (
        ("http://localhost/a.png", "images are not fetched from http addresses here"),
        ("file:///etc/passwd", "cannot be read: send it as a data: address"),
        ("data:image/png;base64,!", "not valid base64"), ("data:,x", "needs base64"),
        ("data:image/png;base64,AAAA", "image cannot be decoded"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            said(llm, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})
    said(llm, message(IMAGES[0]))
    with pytest.raises(InputError, match="reset=False cannot continue"):
        next(llm.generate([65], reset=False))
    llm.eval([65])  # The images are gone.
    assert llm.n_tokens == 1
    with pytest.raises(InputError, match="not with a logits_processor"):
        said(llm, message(IMAGES[0]), logits_processor=[lambda ids, scores: scores])
    with (
        closing(Llama(str(path), chat_format="common", **{**SMALL, "device": "simulated"})) as blind,
        pytest.raises(InputError, match="sees no images: start with --mmproj"),
    ):
        said(blind, message(IMAGES[0]))
