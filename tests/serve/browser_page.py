"""The page in a real browser, as a user handles it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.report.browser import Browser, find
from tests.serve.conftest import KEY, Server, wait_until

MARKDOWN = "## Sum\n\nA *plain* text with a [link](https://example.org/):\n\n```python\ndef add(a, b):\n    return a + b + 1000000000000000000000000000000000000000000000000000000000\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nIt is \\(\\color{red}{x^2}\\).\n"  # fmt: skip # noqa: E501
REASONED = f"<think>\nThink first.\n</think>\n\n{MARKDOWN}"
ENDLESS = "root ::= [a-z ]+"
OVERFLOWING = """
[...document.querySelectorAll("body *")].filter((element) => !element.closest(".code, .table, .unseen")
  && element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80))
"""


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


def versions(page: Page) -> list[str]:
    return page.value("[...document.querySelectorAll('.versions')].map((each) => each.textContent)")


def texts(page: Page) -> list[str]:
    """Return the shown messages, once they are rendered."""
    page.wait("[...document.querySelectorAll('.tail')].every((tail) => !tail.textContent)")
    shown = "[...document.querySelectorAll('article .said, article .text')]"
    return page.value(f"{shown}.map((each) => each.textContent.trim())")


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


def fill(page: Page, **values: str) -> None:
    page.value(
        f"Object.entries({json.dumps(values)}).forEach(([name, value]) => {{"
        " const field = document.getElementById('settings').elements[name];"
        " field.value = value; field.dispatchEvent(new Event('input', { bubbles: true })); })"
    )


def drop(page: Page, name: str, content: str) -> None:
    """Drop a file; `content` is the code of its parts."""
    page.value(
        f"(() => {{ const all = new DataTransfer(); all.items.add(new File([{content}], {json.dumps(name)}));"
        " document.dispatchEvent(new DragEvent('drop', { dataTransfer: all, cancelable: true })); })()"
    )


def lightness(page: Page) -> int:
    return page.value("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
