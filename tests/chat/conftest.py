"""Fixtures that make tiny models with a chat template, and run chats as a user starts them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.chat.templates import CHANNEL_TOKENS, END_TOKENS, THINKING, THINKING_TOKENS, with_template
from tests.cli.conftest import ONE_THREAD, Outcome, environment

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

# THINKING does not render the reasoning of old turns, and KEEPS renders all reasoning. OPENS begins the
# reasoning in the prompt.
KEEPS = THINKING.replace(" and loop.last", "")
OPENS = THINKING.removesuffix("{% endif %}{% endif %}") + "{% else %}<think>\n{% endif %}{% endif %}"
MARKS = (*CHANNEL_TOKENS, *END_TOKENS, *THINKING_TOKENS)
"""Control tokens of the models that `templated` makes."""

GREEDY = (*ONE_THREAD, "--temp", "0", "--draft-length", "8")


@pytest.fixture(scope="session")
def templated(tiny_model, tmp_path_factory):
    """Return `templated("{{ … }}")`, which makes a tiny target with it. `family="qwen3"` makes its draft."""
    made: dict[tuple[str, str], Path] = {}

    def make(template: str = TEMPLATE, family: str = "qwen3moe") -> Path:
        if (template, family) not in made:
            folder = tmp_path_factory.mktemp("templated")
            source = tiny_model(family, n_vocab=288)
            made[template, family] = with_template(source, folder / "model.gguf", template, MARKS)
        return made[template, family]

    return make


def says(text: str) -> str:
    """Return a grammar by which any model says `text` and nothing else. MARKS become their tokens."""
    parts = [part for part in re.split("(" + "|".join(map(re.escape, MARKS)) + ")", text) if part]
    return "root ::= " + " ".join(part if part in MARKS else json.dumps(part) for part in parts)


@pytest.fixture
def chat(tmp_path, programs):
    """Return `chat("hello", "/stats", options=["-n", "8"])`: it runs the demo pair, greedily, on these
    lines."""

    def run(*lines: str, options: tuple[object, ...] = ("-n", 8)) -> Outcome:
        given = "".join(line + "\n" for line in lines).encode()
        done = programs.run("spac", ["chat", *GREEDY, *map(str, options)], tmp_path, environment(), given)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
