"""The page in a real browser: a chat with a server of the demo pair, the live panel, and versions."""

from __future__ import annotations

import json

import pytest

from tests.chat.templates import THINKING
from tests.serve.browser_page import ENDLESS, MARKDOWN, REASONED, served, texts, versions
from tests.serve.conftest import wait_until

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    yield from served(tmp_path_factory, "--ctx", "2048", "--device", "simulated", template=THINKING)


def test_a_conversation(page):
    page.open()
    page.ask("Add two numbers", REASONED)
    assert page.browser.complaints == []
    assert page.text("article.user .said") == "Add two numbers"
    assert page.text(".text h2") == "Sum"
    assert page.text("pre .nf") == "add"
    color = "getComputedStyle(document.querySelector('%s')).color"
    assert page.value(color % "pre .k") != page.value(color % "pre")
    assert page.value(color % "math [data-style]") == "rgb(255, 0, 0)"
    assert page.value("document.querySelector('.text a').rel") == "noopener noreferrer"
    assert "tokens/s" in page.text(".below span")
    details = "document.querySelector('.reasoning')"
    assert not page.value(f"{details}.open")
    page.click(".reasoning summary")
    assert page.value(f"{details}.open")
    assert page.text(".reasoning p").strip() == "Think first."
    assert page.text("#status").startswith("The answer is complete.")

    page.next_says("Other.")
    page.click(".again")
    page.wait_for_answer()
    page.wait("document.querySelector('.text').textContent === 'Other.\\n'")
    assert page.value("sent.at(-1).messages.length") == 1
    assert page.text(".versions") == "‹ 2/2 ›", "the former answer stays"

    page.ask("And more", "Yes.", 4)
    asked = page.value("sent.at(-1)")
    assert [each["role"] for each in asked["messages"]] == ["user", "assistant", "user"]
    assert asked["messages"][1]["content"] == "Other."
    own = {"messages", "stream", "stream_options", "grammar"}
    assert set(asked) == own, "without settings, the server's sampling holds"
    page.reload()
    assert page.count("article") == 4, "the browser keeps it"
    for button, n in (("#new", 0), ("#list .open", 4), ("#list button[aria-label^=Delete]", 0)):
        page.click(button)
        assert page.count("article") == n
    assert page.count("#list li") == 0
    assert page.is_clean()


def test_streaming_stopping_and_the_map(page):
    page.open()
    page.wait("document.getElementById('phase').textContent === 'Idle.'")
    picture = "document.getElementById('map').toDataURL()"
    page.value(
        "window.told = [], new MutationObserver(() => told.push(1))"
        ".observe(document.getElementById('status'), { childList: true })"
    )
    page.send("Go on", ENDLESS)
    page.wait(
        "document.querySelector('article.assistant')?.querySelector('.tail, .text').textContent.length > 20"
    )
    length = "document.querySelector('article.assistant').textContent.length"
    before, map_before = page.value(length), page.value(picture)
    page.wait(f"{length} > {before} + 20")
    page.wait(f"{picture} !== {json.dumps(map_before)}")
    page.wait("Number(document.getElementById('speed').textContent) > 0")
    assert page.text("#hits").endswith("%")
    assert page.text("#phase") == "Generating."
    page.click("#stop")
    page.wait("!document.getElementById('send').hidden")
    assert page.text(".below span") == "stopped"
    wait_until(lambda: page.server.metric("spac_running") == 0)
    assert page.value("told.length") <= 3, "the live region is not told of every token"
    assert page.browser.complaints == []
    page.value("document.getElementById('map').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.browser.key(key)
    assert page.text("#expert").startswith("Layer 1, expert 1:")
    height = "parseFloat(document.getElementById('map').style.height)"
    usual = page.value(height)
    page.value("document.getElementById('map').style.width = '60px'")
    page.browser.key("ArrowDown")  # draws the map anew
    assert page.value(height) != usual, "a layer has several rows where its experts are too narrow"
    page.value(
        "(() => { const map = document.getElementById('map'), at = map.getBoundingClientRect();"
        " const tall = (at.height - 18) / 5, clientX = at.x + 35, clientY = at.y + 18 + 1.5 * tall;"
        " map.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY })); })()"
    )  # fmt: skip
    assert page.text("#expert").startswith("Layer 1, expert 16:"), "the second row begins with the 17th of 32"


def test_messages_are_edited_and_deleted(page):
    """Former versions and what followed them can be shown again. What is deleted can come back."""
    page.open()
    page.ask("One", "First.")
    page.ask("Two", "Second.", 4)
    both = ["One", "First.", "Two", "Second."]
    page.next_says("Third.")
    page.press("Edit", 0)
    assert page.value("document.activeElement.value") == "One"
    page.type(" and more")
    page.wait_for_answer()
    assert texts(page) == ["One and more", "Third."]
    assert [one["content"] for one in page.value("sent.at(-1).messages")] == ["One and more"]
    assert versions(page) == ["‹ 2/2 ›"]
    page.click("[aria-label='Version before']")
    assert texts(page) == both
    assert page.value("document.activeElement.getAttribute('aria-label')") == "Version after"
    page.reload()
    assert texts(page) == both, "the browser keeps the version that is shown"
    page.press("Delete", 2)
    assert texts(page) == both[:2]
    assert page.text("#undo") == "The exchange is deleted. Undo"
    page.click("#undo button")
    assert texts(page) == both
    page.press("Delete", 0)
    assert (texts(page), versions(page)) == (["One and more", "Third."], []), "the other version is left"
    page.click("#undo button")
    assert versions(page) == ["‹ 1/2 ›"]
    page.click("#list button[aria-label^=Delete]")
    assert texts(page) == []
    page.click("#undo button")
    assert texts(page) == both
    assert page.browser.complaints == []


def test_messages_and_code_are_copied(page):
    page.open()
    page.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }, 1")
    page.ask("Add", MARKDOWN)
    page.press("Copy")
    page.wait("window.copied")
    assert page.value("copied") == MARKDOWN
    page.click(".copy")
    page.wait(f"copied === {json.dumps(MARKDOWN.split('```')[1].removeprefix('python' + chr(10)))}")
    assert page.text("#status") == "Copied."
