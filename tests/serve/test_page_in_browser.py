"""The page in a real browser: a chat with a server of the demo pair, the live panel, and its looks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.chat.templates import THINKING
from tests.report.browser import Browser, find
from tests.serve.conftest import KEY, Server, wait_until
from tests.serve.test_page_markdown import pdf

MARKDOWN = "## Sum\n\nA *plain* text with a [link](https://example.org/):\n\n```python\ndef add(a, b):\n    return a + b + 1000000000000000000000000000000000000000000000000000000000\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nIt is \\(\\color{red}{x^2}\\).\n"  # fmt: skip # noqa: E501
REASONED = f"<think>\nThink first.\n</think>\n\n{MARKDOWN}"
ENDLESS = "root ::= [a-z ]+"
WIDTHS = (390, 800, 1280)
OVERFLOWING = """
[...document.querySelectorAll("body *")].filter((element) => !element.closest(".code, .table, .unseen")
  && element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80))
"""


def served(tmp_path_factory, *options: str, template: str = "") -> Iterator[Page]:
    """Yield the page of a server with these options. The test is skipped without a browser."""
    program = find()
    if program is None:
        pytest.skip("no Chromium or Chrome here to show the page in")
    folder = tmp_path_factory.mktemp("page")
    with (
        Server(folder, "--temp", "0", *options, template=template) as server,
        Browser(program, tmp_path_factory.mktemp("profile")) as browser,
    ):
        yield Page(browser, server)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    yield from served(tmp_path_factory, "--ctx", "2048", "--device", "simulated", template=THINKING)


class Page:
    """The page as a user handles it."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.browser, self.server = browser, server

    @property
    def address(self) -> str:
        return self.server.url.removesuffix("/v1") + "/"

    def open(self, width: int = 1280, *, dark: bool = False, key: str | None = KEY) -> None:
        """Open the page without conversations; the grammar of requests is `window.grammar`."""
        self.browser.view(width, 844, dark=dark, phone=width < 500)
        self.browser.open(self.address)
        self.value(f"localStorage.clear(), sessionStorage.clear(), {json.dumps(key)} && "
                   f"sessionStorage.setItem('spac.key', {json.dumps(key)})")  # fmt: skip
        self.reload()
        self.value(
            "window.sent = [], window.original = fetch, window.fetch = (path, options = {}) => {"
            "  if (!path.endsWith('completions')) return original(path, options);"
            "  const body = { ...JSON.parse(options.body), grammar: window.grammar };"
            "  sent.push(body);"
            "  return original(path, { ...options, body: JSON.stringify(body) }); }, 1"
        )

    def reload(self) -> None:
        self.browser.open(self.address)

    def value(self, expression: str) -> Any:
        return self.browser.value(expression)

    def text(self, selector: str) -> str:
        """Return the text of the last element that the selector finds, or ""."""
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.textContent || ''")

    def click(self, selector: str) -> None:
        self.value(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1).click()")

    def press(self, text: str, place: int = -1) -> None:
        """Click a button of the messages that has this text."""
        self.value(
            "[...document.querySelectorAll('article button')]"
            f".filter((one) => one.textContent === {json.dumps(text)}).at({place}).click()"
        )

    def next_says(self, text: str) -> None:
        self.value(f"window.grammar = {json.dumps(saying(text))}")

    def type(self, text: str, key: str = "Enter") -> None:
        self.browser.send("Input.insertText", text=text)
        self.browser.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)

    def send(self, text: str, grammar: str) -> None:
        """Type a message and press Enter."""
        self.value(f"window.grammar = {json.dumps(grammar)}, document.getElementById('prompt').focus()")
        self.type(text)

    def ask(self, text: str, said: str, n: int = 2) -> None:
        """Send a message, and wait for the answer. Then, the page shows `n` messages."""
        self.send(text, saying(said))
        self.wait_for_answer(n)

    def count(self, selector: str) -> int:
        return self.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    def wait(self, expression: str) -> None:
        wait_until(lambda: bool(self.value(expression)))

    def wait_for_answer(self, n: int = 2) -> None:
        self.wait(f"document.querySelectorAll('article').length === {n}")
        self.wait("!document.getElementById('send').hidden && !document.querySelector('.tail').textContent")

    def is_clean(self) -> bool:
        """Return whether the browser has no complaints, and no conversation is kept."""
        kept = self.value("Object.keys(localStorage).filter((name) => name.startsWith('spac.chat'))")
        return self.browser.complaints == kept == []


def saying(text: str) -> str:
    return f"root ::= {json.dumps(text)}"


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


def versions(page: Page) -> list[str]:
    return page.value("[...document.querySelectorAll('.versions')].map((each) => each.textContent)")


def texts(page: Page) -> list[str]:
    """Return the shown messages, once they are rendered."""
    page.wait("[...document.querySelectorAll('.tail')].every((tail) => !tail.textContent)")
    shown = "[...document.querySelectorAll('article .said, article .text')]"
    return page.value(f"{shown}.map((each) => each.textContent.trim())")


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


def titles(page: Page) -> list[str]:
    return page.value("[...document.querySelectorAll('#list .open')].map((each) => each.textContent)")


def search(page: Page, words: str) -> None:
    page.value(
        f"document.getElementById('search').value = {json.dumps(words)},"
        " document.getElementById('search').dispatchEvent(new Event('input'))"
    )


def bring(page: Page, name: str, text: str) -> None:
    """Choose a file to import."""
    page.value(
        "(() => { const all = new DataTransfer(), field = document.getElementById('import-file');"
        f" all.items.add(new File([{json.dumps(text)}], {json.dumps(name)})); field.files = all.files;"
        " field.dispatchEvent(new Event('change')); })()"
    )


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


def fill(page: Page, **values: str) -> None:
    page.value(
        f"Object.entries({json.dumps(values)}).forEach(([name, value]) => {{"
        " const field = document.getElementById('settings').elements[name];"
        " field.value = value; field.dispatchEvent(new Event('input', { bubbles: true })); })"
    )


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


def lightness(page: Page) -> int:
    return page.value("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")


def test_the_key_is_asked_for_once(page):
    page.open(key=None)
    page.wait("document.getElementById('ask').open")
    page.value("document.getElementById('key').focus()")
    page.browser.send("Input.insertText", text=KEY)
    page.click("#ask button")
    page.wait("document.getElementById('model').textContent === 'demo'")
    assert page.text(".hello").endswith("The demo pair knows Python code alone.")
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


def drop(page: Page, name: str, content: str) -> None:
    """Drop a file; `content` is the code of its parts."""
    page.value(
        f"(() => {{ const all = new DataTransfer(); all.items.add(new File([{content}], {json.dumps(name)}));"
        " document.dispatchEvent(new DragEvent('drop', { dataTransfer: all, cancelable: true })); })()"
    )


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
