"""A model's chat template is a program, and its work has limits wherever it runs."""

from __future__ import annotations

from contextlib import suppress

import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.templates import THINKING
from tests.cli.conftest import ONE_THREAD, environment

USER = {"role": "user", "content": "hello"}
GROWS = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = "
MUCH = "more than 64 MB|more than 1 GB"
HOSTILE = {
    "calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself too often"),
    "two call each other": (
        "{% macro a(x) %}{{ b(x) }}{% endmacro %}{% macro b(x) %}{{ a(x) }}{% endmacro %}{{ a(1) }}",
        "calls itself too often",
    ),
    "a long range": ("{% for i in range(1000000000) %}{{ i }}{% endfor %}", "more than 64 MB"),
    "the longest range": ("{{ range(-9223372036854775807, 9223372036854775807) | length }}", "than 64 MB"),
    "a text that doubles": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        MUCH,
    ),
    "a list that doubles": (GROWS + "ns.x + ns.x %}{% endfor %}", "more than 64 MB"),
    "a text many times": ("{{ 'a' * 1000000000000 }}", MUCH),
    "a long text many times": ("{{ ('a' * 1000000) * 1000000 }}", MUCH),
    "replaced": ("{% set x = ('a' * 100000) | upper %}{{ x | replace('A', x) | replace('A', x) }}", MUCH),
    "replaced in place": ("{{ ('a' * 1000000) | replace('a', 'bb') }}", "apart for too long"),
    "split": ("{{ (('a,' * 500000) | string).split(',') | length }}", "more than 64 MB|apart for too long"),
    "indented": ("{{ 'a\nb' | indent(2000000000) }}", "more than 64 MB"),
    "indented by name": ("{{ 'a\nb' | indent(width=2000000000) }}", "more than 64 MB"),
    "JSON": ("{{ [[1]] | tojson(indent=1000000000) }}", "more than 64 MB"),
    "joined": ("{{ range(100000) | join('a' * 100000) }}", "more than 64 MB"),
    "a value in itself": ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}", "into itself"),
    "a list in itself": ("{% set x = [] %}{{ x.append([x]) }}{{ x | tojson }}", "into itself"),
    "values in values": (
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "does not end in 4 s",
    ),
    "too long": ("{# " + "x" * 200_000 + " #}{{ messages[0].content }}", "100000 are the most"),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tiny_model):
    with Engine(EngineConfig(tiny_model("qwen3moe"), slots=4, threads=1, ctx=256)) as engine:
        yield engine.target


LATE = {"values in values"}  # its refusal takes 4 s


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LATE else ()) for name in HOSTILE]
)
def test_it_is_refused_with_its_fault(target, name):
    source, fault = HOSTILE[name]
    with pytest.raises(InputError, match=f"^the chat template cannot be used: .*({fault})") as refused:
        ChatFormat(target, source)
    assert "\n" not in str(refused.value)


EXPRESSIONS = {
    "brackets": "(" * 45_000 + "1" + ")" * 45_000, "lists": "[" * 45_000 + "]" * 45_000,
    "signs": "not " * 24_000 + "1", "a chain": "'a'" + "~'a'" * 2_500,
    "choices": "1 if 0 else " * 8_000 + "1", "filters": "'a'" + "|trim" * 19_000,
}  # fmt: skip


@pytest.mark.parametrize("deep", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_the_deepest_expressions_that_a_template_can_have(target, deep):
    """The tree of a template is as deep as its text. A part of it that does not run is freed too."""
    with suppress(InputError):
        assert ChatFormat(target, "{{ messages[0].content }}{{ " + deep + " }}").prompt([USER]).text
    source = "{{ messages[0].content }}{% if false %}{{ " + deep + " }}{% endif %}"
    assert ChatFormat(target, source).prompt([USER]).text == "hello"


def test_the_deepest_conditions_that_a_template_can_have(target):
    for begin, end in (("{% if 1 %}", "{% endif %}"), ("{% if 0 %}{% else %}", "{% endif %}")):
        n = 95_000 // len(begin + end)
        with suppress(InputError):
            assert ChatFormat(target, begin * n + "{{ messages[0].content }}" + end * n).prompt([USER]).text


def test_a_later_message_is_refused_too(target):
    source = (
        "{% macro m() %}{{ m() }}{% endmacro %}"
        "{% for x in messages %}{{ x.content }}{% if x.content == 'deep' %}{{ m() }}{% endif %}{% endfor %}"
    )
    chat = ChatFormat(target, source)
    with pytest.raises(InputError, match=r"the chat template refuses these messages: .*calls itself"):
        chat.prompt([{"role": "user", "content": "deep"}])
    assert chat.prompt([USER]).text == "hello"


def test_long_conversations_are_within_the_limits(target):
    messages = [
        {"role": role, "content": "word " * 200} for _ in range(2000) for role in ("user", "assistant")
    ]
    assert len(ChatFormat(target, THINKING).prompt(messages[:-1]).text) > 3_000_000


@pytest.mark.parametrize("program", ["run", "chat", "serve", "doctor"])
def test_programs(programs, templated, tmp_path, program):
    """A model's own template is replaced by a plain one, with a note."""
    source, fault = HOSTILE["calls itself"]
    model = templated(source)
    words = [program, "-m", str(model), "--device", "cpu", "-c", "256", *ONE_THREAD]
    if program == "serve":
        words = [*words, "--chat-template", source, "--port", "0"]
    if program == "run":
        words += ["-p", "x", "-n", "1"]
    if program == "doctor":
        words = ["doctor", "-m", str(model)]
    done = programs.run("spac", words, tmp_path, environment(), b"hello\n/quit\n")
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode in (0, 1, 2), said
    assert (done.returncode == 2) == (program == "serve"), said
    assert program not in ("chat", "serve") or fault in said, said
