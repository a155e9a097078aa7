"""Markdown, formulas and PDF files of the page, and that no text harms the page or the server."""

from __future__ import annotations

import asyncio
import json
from html.parser import HTMLParser

import pytest

from spac.serve.page import MOST_PDF, renderer
from spac.serve.page.renderer import LONGEST_TEXT, Renderer, plain_html_of
from spac.serve.page.rendering import LONGEST_FORMULA, html_of

ELEMENTS = {
    "p", "a", "sup", "hr", "section", "ol", "ul", "li", "input", "table", "thead", "tbody", "tr", "th", "td",
    "em", "code", "pre", "div", "span", "button", "math", "mrow", "mi", "mn", "mo", "mtext", "mspace",
    "msqrt", "mtable", "mtr", "mtd",
}  # fmt: skip
ATTRIBUTES = {
    "class", "href", "rel", "target", "id", "type", "checked", "disabled", "title", "tabindex", "role",
    "aria-label", "display", "displaystyle", "scriptlevel", "data-style", "stretchy", "lspace", "rspace",
    "mathvariant",
}  # fmt: skip
"""The HTML that texts may have. Nothing in it runs a script, loads anything, or sets a style."""


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "a <img src=x onerror=alert(1)> b", "![x](https://example.org/x.png)",
        "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](data:text/html,hi)",
        "[x](//example.org)",
        "<javascript:alert(1)>", '```"><script>alert(1)</script>\nx\n```', "```python\n</code><script>\n```",
        '| a |\n|:-:|\n| <b style="x"> |', "[a]: javascript:alert(1)\n\n[a]",
        "- [ ] <b onclick=x>", "[^<b>]\n\n[^<b>]: <script>x</script> [y](javascript:x)", "^[<script>]",
        r"$\text{<script>alert(1)</script>}$", r"\(\text{&lt;img src=x onerror=alert(1)&gt;}\)",
        r"$\href{javascript:alert(1)}{x}$", r"\[\class{a}\style{color:red}{x}\]", r"$\unknown{<img src=x>}$",
        r'$\color{red" onload="x}{x}$', r"$$\begin{align}a\label{prompt\" onclick=x}\eqref{<b>}\end{align}$$",
        "$" + "{" * LONGEST_FORMULA + "$", "$" + r"\sqrt{" * 300 + "}" * 300 + "$", r"$\def\x{\x\x}\x$",
        r"$\newcommand{\x}{<script>}\x$", "$\\text{\n</span><script>\n}$",
    ],
)  # fmt: skip
def test_markdown_is_safe(text):
    for name, attributes in elements_of(html_of(text)):
        assert name in ELEMENTS
        for key, value in attributes:
            assert key in ATTRIBUTES
            if key == "href":
                assert value.startswith(("https://", "#fn", "#formula-"))
            if key == "id":
                assert value.startswith(("fn", "formula-")), "the page's own ids are not taken"


def elements_of(html: str) -> list[tuple[str, list]]:
    found: list[tuple[str, list]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda name, attributes: found.append((name, attributes))
    parser.feed(html)
    parser.close()
    return found


def test_markdown_is_what_it_says():
    code = html_of("```python\ndef f(x): return 1\n```\n```nothing\na<b\n```")
    assert '<span class="k">def</span>' in code
    assert "a&lt;b" in code
    assert 'rel="noopener noreferrer"' in html_of("[a](http://example.org)")
    assert '<td class="right">' in html_of("| a |\n|--:|\n| 1 |")
    assert html_of("- [x] a\n- [ ] b").count("checked=") == 1
    assert '<a href="#fn-' in html_of("a[^1]\n\n[^1]: b")


@pytest.mark.parametrize("text", ["a $x^2$", r"a \(x^2\)", "$$\nx^2\n$$", "a $$x^2$$", "\\[\n  x^2\n\\]\nb"])
def test_formulas(text):
    html = html_of(text)
    assert "<msup><mi>x</mi><mn>2</mn></msup></math>" in html
    assert ('display="block"' in html) == ("$$" in text or "[" in text)


def test_what_is_no_formula():
    assert html_of("It costs $5 and $10.") == "<p>It costs $5 and $10.</p>\n"
    assert "<code>\\(x\\)</code>" in html_of("`\\(x\\)`")
    assert html_of(r"\[\nonsense{1}\]") == (
        '<span class="formula" tabindex="0" role="group" aria-label="Formula">'
        "<code>\\[\\nonsense{1}\\]</code></span>\n"
    )
    assert html_of("- a\n\n  \\[\n  - b\n  + c\n  \\]").count("<li>") == 1, "its lines are no lists"


def test_texts_that_are_too_much_are_plain(monkeypatch):
    """A text that needs too long, or ends the process, harms only itself."""

    async def render() -> None:
        long, slow, some = "x" * (LONGEST_TEXT + 1), "[" * 100_000, "*so*"
        impatient, patient = Renderer(longest_s=0.01), Renderer()
        for text in (long, slow):
            assert await impatient.html_of(text) == plain_html_of(text)
        assert await patient.html_of(some) == html_of(some)
        patient._process.kill()
        patient._process.wait()
        assert await patient.html_of(some) == plain_html_of(some)
        task, turns = asyncio.create_task(patient.html_of(slow)), 0  # another process has started
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 10, "other requests go on"
        monkeypatch.setattr(renderer, "MOST_JOBS", 4)
        texts = [f"*{i}*" for i in range(10)]
        made = await asyncio.gather(*map(patient.html_of, texts))
        assert made == [*map(html_of, texts[:4]), *map(plain_html_of, texts[4:])]
        patient.close()

    asyncio.run(render())


def pdf(*texts: str) -> bytes:
    """Return a PDF file of a page for each text."""
    n = len(texts)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(n))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Count {n}/Kids[{kids}]>>",
               "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]  # fmt: skip
    for i, text in enumerate(texts):
        shown = f"BT /F 12 Tf 9 9 Td ({text}) Tj ET"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents {5 + 2 * i} 0 R"
                       "/Resources<</Font<</F 3 0 R>>>>>>")  # fmt: skip
        objects.append(f"<</Length {len(shown)}>>stream\n{shown}\nendstream")
    body, places = "%PDF-1.4\n", []
    for i, content in enumerate(objects, 1):
        places.append(f"{len(body):010} 00000 n \n")
        body += f"{i} 0 obj\n{content}\nendobj\n"
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{''.join(places)}"
    end = f"trailer<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{len(body)}\n%%EOF"
    return (body + table + end).encode()


def test_pdf_files(server):
    status, body = server.ask("POST", "/page/pdf", pdf("First page", "Second page"))
    assert (status, json.loads(body)) == (200, {"text": "First page\n\nSecond page"})
    for wrong in (b"", b"%PDF-1.4", pdf(""), pdf("x")[:-200], b"x" * 1000):
        status, body = server.ask("POST", "/page/pdf", wrong)
        assert status == 400
        assert json.loads(body)["error"]["message"] == "this PDF file has no text that can be read"
    assert server.ask("POST", "/page/pdf", b"x" * (MOST_PDF + 1))[0] == 413
