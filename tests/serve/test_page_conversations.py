"""The page in a real browser: conversations, settings, the key, files, and its looks."""

from __future__ import annotations

import json
from itertools import product

import pytest

from tests.chat.templates import THINKING
from tests.serve.browser_page import (
    ENDLESS,
    OVERFLOWING,
    REASONED,
    bring,
    drop,
    fill,
    lightness,
    search,
    served,
    texts,
    titles,
    versions,
)
from tests.serve.conftest import KEY, wait_until
from tests.serve.test_page_markdown import pdf

pytestmark = pytest.mark.nightly

WIDTHS = (390, 800, 1280)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    yield from served(tmp_path_factory, "--ctx", "2048", "--device", "simulated", template=THINKING)


def test_conversations_are_renamed_searched_and_imported(page):
    page.open()
    page.ask("Apples", "About fruit.")
    page.click("#new")
    page.ask("Cars", "Yes.")
    assert titles(page) == ["Cars", "Apples"]
    page.click("#list button[aria-label^='Rename']")
    page.type("Fruit <b>salad</b>")
    assert titles(page) == ["Cars", "Fruit <b>salad</b>"]
    for words, found in (("FRUIT", 1), ("car", 1), ("yes", 1), ("s", 2), ("none", 0), ("", 2)):
        search(page, words)
        assert len(titles(page)) == found, words
    page.value("window.saved = '', URL.createObjectURL = (blob) => { window.blob = blob; return '#'; }, 1")
    page.click("#export")
    exported = page.value("blob.text()")
    page.open()
    no_text, no_role = exported.replace('"content"', '"text"'), exported.replace("user", "system")
    for wrong in ("", "[1]", "{}", no_text, no_role):
        bring(page, "wrong.json", wrong)
        page.wait("document.querySelector('.fault') !== null")
        assert page.text(".fault") == 'wrong.json is no file that "Export all" wrote.'
        page.value("document.querySelector('.fault').remove()")
    assert titles(page) == []
    bring(page, "right.json", exported)
    page.wait("document.getElementById('status').textContent === '2 conversations are imported.'")
    assert titles(page) == ["Cars", "Fruit <b>salad</b>"]
    page.click("#list .open")
    assert texts(page) == ["Apples", "About fruit."]
    assert page.value("document.title") == "Fruit <b>salad</b> – spac"
    assert page.browser.complaints == []


def test_shortcuts(page):
    page.open()
    page.ask("Hello", "Hi.")
    page.value("document.getElementById('prompt').focus()")
    for key, modifiers, name, focused in (
        ("ArrowUp", 0, "ariaLabel", "Edited message"), ("Escape", 0, "id", "prompt"),
        ("k", 2, "id", "search"), ("O", 2 + 8, "id", "prompt"),
    ):  # fmt: skip
        page.browser.send("Input.dispatchKeyEvent", type="rawKeyDown", key=key, modifiers=modifiers)
        assert page.value(f"document.activeElement.{name}") == focused
    assert texts(page) == []


def test_a_reader_who_does_not_look_costs_nothing(page):
    page.open()
    page.wait("document.getElementById('phase').textContent === 'Idle.'")
    page.click("#show-live")
    page.ask("Hello", "Hi.")
    assert page.text("#phase") == "Idle.", "the panel is closed, and the feed is not watched"


def test_another_conversation_during_an_answer(page):
    """The answer goes on, and either conversation can be used."""
    page.open()
    page.send("First", ENDLESS)
    length = "(document.querySelector('article.assistant')?.textContent.length || 0)"
    hidden = "[document.getElementById('send').hidden, document.getElementById('stop').hidden]"
    page.wait(f"{length} > 30")
    page.click("#new")
    assert (page.count("article"), page.value(hidden)) == (0, [False, True])
    page.click("#list .open")
    assert page.value(hidden) == [True, False]
    page.wait(f"{length} > {page.value(length)} + 20")
    page.click("#stop")
    page.wait("!document.getElementById('send').hidden")
    assert "stopped" in page.text(".below span")
    assert page.text(".again") == "Regenerate"
    wait_until(lambda: page.server.metric("spac_running") == 0)
    page.send("Second", ENDLESS)
    page.wait(f"{length} > 30")
    page.click("#list button[aria-label^=Delete]")
    wait_until(lambda: page.server.metric("spac_running") == 0)
    assert page.is_clean()


def test_a_conversation_that_the_context_does_not_hold(page):
    page.open()
    pairs = [("user", "assistant")] * 20
    words = "word " * 100
    said = [{"role": role, "content": f"{i} {words}"} for i, pair in enumerate(pairs) for role in pair]
    chat = {"id": "1-1", "changed": 1, "messages": said}
    page.value(f"localStorage.setItem('spac.chat.1-1', {json.dumps(json.dumps(chat))})")
    page.click("#new")
    page.value("dispatchEvent(new Event('storage'))")
    page.click("#list .open")
    page.ask("And?", "Yes.", 42)  # nothing is lost
    sent = page.value("sent.at(-1).messages")
    n = len(sent)
    assert n < 41
    assert n % 2 == 1
    assert sent[0]["role"] == "user"
    page.wait("document.querySelector('.below span') !== null")
    assert f"the model no longer sees the first {41 - n} messages" in page.text(".below span")
    assert "of 2048 tokens of the context" in page.text(".below span")
    page.ask("And now?", "No.", 44)
    assert page.value("sent.at(-1).messages.length") == n + 2


def test_settings_belong_to_a_conversation(page):
    page.open()
    loaded = "document.getElementById('settings').elements.temperature.placeholder === '0'"
    page.wait(loaded)
    names = ["top_k", "top_p", "seed", "max_tokens"]
    placeholders = f"{names}.map((name) => document.getElementById('settings').elements[name].placeholder)"
    assert page.value(placeholders) == ["40", "0.95", "random", "no limit"]
    fill(page, system="Be brief.", temperature="0.5", seed="7", top_p="9", reasoning="off")
    page.ask("Hello", "Hi.")
    sent = page.value("sent[0]")
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["seed"], "top_p" in sent) == (0.5, 7, False), "9 is no share"
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning" not in sent
    page.click("#new")
    assert page.value("document.getElementById('system').value") == "Be brief.", "the last settings"
    fill(page, system="", temperature="", reasoning="")
    page.ask("Hello", "Hi.")
    sent = page.value("sent[1]")
    assert (sent["messages"][0]["role"], sent["seed"]) == ("user", 7)
    assert not {"temperature", "chat_template_kwargs"} & set(sent)
    page.reload()
    page.wait(loaded)
    shown = "['system', 'temperature', 'reasoning'].map((name) => settings.elements[name].value)"
    assert page.value(shown) == ["", "", ""]
    page.click("#list .open")
    assert page.value(shown) == ["Be brief.", "0.5", "off"]
    assert page.browser.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_theme_is_kept(page, theme):
    page.open(dark=theme == "light")
    page.value(
        f"document.getElementById('theme').value = {json.dumps(theme)},"
        " document.getElementById('theme').dispatchEvent(new Event('change'))"
    )
    for _ in range(2):
        assert (lightness(page) < 60) == (theme == "dark")
        assert page.value("document.documentElement.style.colorScheme") == theme
        page.reload()
    assert page.browser.complaints == []


def test_the_key_is_asked_for_once(page):
    page.open(key=None)
    page.wait("document.getElementById('ask').open")
    page.value("document.getElementById('key').focus()")
    page.browser.send("Input.insertText", text=KEY)
    page.click("#ask button")
    page.wait("document.getElementById('model').textContent === 'demo'")
    assert page.text(".hello").endswith("The demo pair tells short stories alone.")
    page.wait("document.getElementById('phase').textContent === 'Idle.'")
    assert not page.value("document.getElementById('ask').open")
    assert page.value("JSON.stringify(localStorage).includes('a key')") is False


def test_a_refusal_is_shown(page):
    page.open()
    page.send("Hello", "root ::= (")
    page.wait("document.querySelector('.fault') !== null")
    assert "grammar" in page.text(".fault")
    assert page.text(".again") == "Answer", "the question can be asked again"
    page.click("#new")
    page.ask("Hello", "Hi.")
    page.value("window.grammar = 'root ::= ('")
    page.click(".again")
    page.wait("document.querySelector('.fault') !== null")
    assert (texts(page), versions(page)) == (["Hello", "Hi."], []), "the former answer stays"


def test_a_message_takes_the_place_of_one_without_an_answer(page):
    """The model never gets two messages of the user in a row, and the former one stays as a version."""
    page.open()
    page.ask("Hello", "Hi.")
    page.send("Fails", "root ::= (")
    page.wait("document.querySelector('.fault') !== null")
    page.ask("Works", "Yes.", 4)
    sent = page.value("sent.at(-1).messages")
    assert [one["content"] for one in sent] == ["Hello", "Hi.", "Works"]
    assert (texts(page), versions(page)) == (["Hello", "Hi.", "Works", "Yes."], ["‹ 2/2 ›"])
    page.click("[aria-label='Version before']")
    assert texts(page) == ["Hello", "Hi.", "Fails"]
    page.next_says("Now.")
    page.press("Answer")
    page.wait_for_answer(4)
    assert texts(page) == ["Hello", "Hi.", "Fails", "Now."], "it can be asked again"


def test_images_are_refused_for_a_model_that_sees_none(page):
    page.open()
    page.wait("document.getElementById('model').textContent === 'demo'")
    page.wait("window.dropped = new DataTransfer(), dropped.items.add(new File(['x'], 'a.png')),"
              " document.dispatchEvent(new DragEvent('drop', { dataTransfer: dropped, cancelable: true })),"
              " document.querySelector('.fault') !== null")  # fmt: skip
    assert page.text(".fault") == "This model sees no images: start the server with --mmproj."


def test_text_files(page):
    page.open()
    drop(page, "notes.md", json.dumps("# Grün\n```\nx\n```"))
    drop(page, "<b>.txt", json.dumps("plain\n"))
    drop(page, "a.PDF", json.dumps(pdf("Page one").decode()))
    page.wait("document.querySelectorAll('#attached li').length === 3")
    page.ask("Read these", "Yes.")
    assert page.value("sent.at(-1).messages[0].content") == (
        "notes.md:\n````\n# Grün\n```\nx\n```\n````\n\n<b>.txt:\n```\nplain\n```\n\n"
        "a.PDF:\n```\nPage one\n```\n\nRead these"
    )
    shown = page.value("[...document.querySelectorAll('.file')].map((each) => each.textContent)")
    assert shown == ["notes.md# Grün\n```\nx\n```", "<b>.txtplain\n", "a.PDFPage one"]
    search(page, "grün")
    assert titles(page) == ["Read these"]
    assert page.browser.complaints == []
    for name, content, why in (
        ("a.bin", "new Uint8Array([0, 1])", "a.bin is no text in UTF-8."),
        ("b.txt", "new Uint8Array([255])", "b.txt is no text in UTF-8."),
        ("c.log", "'x'.repeat(600_000)", "c.log has 0.6 MB of text, and a file may have 0.5 MB."),
        ("d.pdf", "'%PDF'", "d.pdf is not read: this PDF file has no text that can be read."),
    ):
        drop(page, name, content)
        page.wait(f"[...document.querySelectorAll('.fault')].at(-1)?.textContent === {json.dumps(why)}")
    assert page.count("#attached li") == 0


def test_it_fits(page):
    page.open()
    page.ask("Add", REASONED)
    for dark, width in product((False, True), WIDTHS):
        page.browser.view(width, 844, dark=dark, phone=width < 500)
        for panel in (None, "live", "chats"):
            if panel is not None:
                page.click(f"#show-{panel}")
            page.wait(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
            assert page.value(OVERFLOWING) == []
        assert (lightness(page) < 60) == dark
    assert page.browser.complaints == []
