"""Images in the page, in a real browser, with a model that sees."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.serve.browser_page import OVERFLOWING, Page, served
from tools.models import write_projector
from tools.models.projector import png

pytestmark = pytest.mark.nightly

ANSWER = "root ::= [a-z]{12}"
SMALL = {f"{number}.png": png(64, 96, number) for number in (1, 2)}
LARGE = {"photo.png": png(2000, 40)}
URLS = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in SMALL.values()]
ATTACHED = "document.querySelectorAll('#attached img').length"


@pytest.fixture(scope="module")
def page(tiny_model, tmp_path_factory):
    mmproj = write_projector(tmp_path_factory.mktemp("seeing") / "mmproj.gguf", "qwen3vl", 64)
    models = ("--target", str(tiny_model("qwen3vlmoe")), "--mmproj", str(mmproj))
    yield from served(tmp_path_factory, *models, "--ctx", "512")


def bring(page: Page, how: str, files: dict[str, bytes]) -> None:
    """Paste files into the message, or drop them there."""
    made = ",".join(
        f"new File([Uint8Array.from(atob('{base64.b64encode(data).decode()}'), (c) => c.charCodeAt(0))],"
        f" '{name}', {{ type: 'image/png' }})"
        for name, data in files.items()
    )
    kind, data = {"paste": ("ClipboardEvent", "clipboardData"), "drop": ("DragEvent", "dataTransfer")}[how]
    page.value(
        f"(() => {{ const all = new DataTransfer(); for (const file of [{made}]) all.items.add(file);"
        f" document.getElementById('prompt').dispatchEvent(new {kind}('{how}', {{ {data}: all, bubbles: true,"
        " cancelable: true })); })()"
    )


def open_page(page: Page, width: int = 1280) -> None:
    page.open(width)
    page.wait("document.getElementById('attach').title === 'Attach images and text files'")


def ask(page: Page, text: str, n: int = 2) -> None:
    page.send(text, ANSWER)
    page.wait_for_answer(n)


def choose(page: Page, *paths: Path) -> None:
    """Choose files as a user does behind the button."""
    found = page.browser.send("Runtime.evaluate", expression="document.getElementById('file')")
    files = [str(path) for path in paths]
    page.browser.send("DOM.setFileInputFiles", files=files, objectId=found["result"]["objectId"])


def images(page: Page, message: int) -> list[str]:
    parts = page.value(f"sent.at(-1).messages[{message}].content")
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def test_a_conversation_with_images(page, tmp_path):
    open_page(page)
    path = tmp_path / "1.png"
    path.write_bytes(SMALL["1.png"])
    choose(page, path)
    page.wait(f"{ATTACHED} === 1")
    assert page.text("#status") == "1.png is attached."
    ask(page, "What is this?")
    assert page.value("sent[0].messages[0].content") == [
        {"type": "image_url", "image_url": {"url": URLS[0]}}, {"type": "text", "text": "What is this?"},
    ]  # fmt: skip
    assert len(page.text("article.assistant .text").strip()) == 12
    image = "document.querySelector('article.user img')"
    assert page.value(f"[{image}.alt, {image}.naturalHeight]") == ["1.png", 96]

    ask(page, "Go on", 4)
    assert images(page, 0) == [URLS[0]], "the image stays part of the conversation"
    assert page.value("sent.at(-1).messages[2].content") == "Go on"
    page.reload()
    assert page.value(f"{image}.src") == URLS[0], "the browser keeps it"
    assert page.browser.complaints == []

    open_page(page)
    bring(page, "paste", {"2.png": SMALL["2.png"]})
    ask(page, "What is this?")
    assert images(page, 0) == [URLS[1]], "a message waits for its images"
    assert len(page.text("article.assistant .text").strip()) == 12


def test_by_keyboard_and_without_a_text(page):
    open_page(page, 390)
    bring(page, "drop", {**SMALL, **LARGE})
    page.wait(f"{ATTACHED} === 3")
    nodes = page.browser.send("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if "role" in node}
    assert {("button", "Attach"), ("list", "Attached files"), ("button", "Remove 1.png")} <= named
    for dark in (False, True):
        page.browser.view(390, 844, dark=dark, phone=True)
        assert page.value(OVERFLOWING) == []
    page.value("document.querySelector('#attached button').focus()")
    page.browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    page.browser.key("Enter")
    page.wait(f"{ATTACHED} === 2")
    assert page.text("#status") == "1.png is removed."
    assert page.value("document.activeElement.getAttribute('aria-label')") == "Remove 2.png"
    page.value(f"window.grammar = {json.dumps(ANSWER)}")
    page.click("#send")
    page.wait_for_answer()
    first, large = images(page, 0)
    assert first == URLS[1]
    assert large.startswith("data:image/jpeg;base64,")
    shown = "[...document.querySelectorAll('article.user img')].map((image) => image.%s)"
    widths = f"Promise.all({shown % 'decode()'}).then(() => {shown % 'naturalWidth'})"
    assert page.value(widths) == [64, 1280]
    assert page.count("#attached img, article.user .text") == 0
    bring(page, "drop", {"bad.png": b"no image"})
    page.wait("document.querySelector('.fault') !== null")
    assert page.text(".fault") == "bad.png is no image that this browser can read."
    assert page.value(OVERFLOWING) == []
    assert page.browser.complaints == []
