"""A tiny model that has a chat template, and chats run as a user starts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from tests.cli.conftest import ONE_THREAD, Outcome, environment

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

GREEDY = (*ONE_THREAD, "--temp", "0", "--draft-length", "8")


def with_template(source: Path, target: Path, template: str) -> Path:
    """A copy of a model, with a chat template."""
    import gguf

    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    text = MetadataDetails(gguf.GGUFValueType.STRING, template)
    copy_with_new_metadata(reader, writer, {"tokenizer.chat_template": text}, [])
    return target


@pytest.fixture(scope="session")
def templated(
    tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`templated("{{ … }}")`: a tiny target with that template."""
    made: dict[str, Path] = {}

    def make(template: str = TEMPLATE) -> Path:
        if template not in made:
            folder = tmp_path_factory.mktemp("templated")
            made[template] = with_template(tiny_model("qwen3moe"), folder / "model.gguf", template)
        return made[template]

    return make


@pytest.fixture
def chat(tmp_path: Path) -> Callable[..., Outcome]:
    """`chat("hello", "/stats", options=["-n", "8"])`: the demo pair, greedily, with these lines on stdin."""

    def run(*lines: str, options: tuple[object, ...] = ("-n", 8)) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "spac.chat", *GREEDY, *map(str, options)],
            input="".join(line + "\n" for line in lines).encode(), capture_output=True, timeout=60,
            cwd=tmp_path, env=environment(),
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
