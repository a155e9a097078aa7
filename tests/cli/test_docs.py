"""Commands and programs of the documents run as they are written, and tables have the values of the code."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys

import anthropic
import openai
import pytest
from prometheus_client import Counter

import spac.demo as demo
from spac import env
from spac.chat.commands import COMMANDS
from spac.errors import InputError
from spac.scheduler import make, names
from spac.scheduler.choice import class_of
from spac.serve.admin import VRAM
from spac.serve.metrics import METRICS
from spac.serve.routes import ANSWERS, READS, SHORT, TOOLS
from spac.serve.state import SLOTS
from spac.stats import RunStats
from tests.cli.conftest import environment
from tests.cli.options_page import PAGE, PROGRAMS, VARIABLES, page, parser_of
from tests.cli.test_readme import PAGES, README, rows

EXAMPLES = [
    code
    for text in (README, PAGES["python-api.md"])
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]
"""Python programs of the documents. tests/examples runs the server's client, which is in docs/server.md."""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the model and the draft that the documents name."""
    (tmp_path / "model.gguf").symlink_to(demo.TARGET)
    (tmp_path / "draft.gguf").symlink_to(demo.DRAFT)
    return tmp_path


def run(command, folder):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


# Commands and programs


def test_there_are_examples():
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.split("\n")[0])
def test_examples_in_python(code, folder):
    out = run(["-c", code], folder)
    assert "tokens/s" in out  # all print their figures
    assert len(out) > 100


@pytest.mark.parametrize("name", ["README.md", *sorted(PAGES)])
def test_programs_read_the_commands(name):
    """The options of every command of `spac` in a block of code exist, and take the values that they get."""
    text = README if name == "README.md" else PAGES[name]
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        if match := re.match(r"(?:\w+=\S+ )*spac (.*)", line):
            program, *words = shlex.split(match[1], comments=True)
            parser = parser_of(program)
            parser.parse_args(parser.split(words)[0] if program == "exec" else words)


def test_clients_read_the_variables_of_the_guides(monkeypatch):
    for name, value in re.findall(r"^export (\w+)=(\S+)$", PAGES["guides.md"], re.MULTILINE):
        monkeypatch.setenv(name, value)
    assert str(openai.OpenAI().base_url) == "http://127.0.0.1:8000/v1/"
    client = anthropic.Anthropic()
    assert (str(client.base_url), client.auth_token) == ("http://127.0.0.1:8000", "none")


def test_recording_and_report(folder):
    blocks = re.findall(r"```sh\n(.*?)```", PAGES["quickstart.md"], re.DOTALL)
    [commands] = [block for block in blocks if "--record" in block]
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "spac"
        run(["-m", "spac", *arguments], folder)
    assert "</html>" in (folder / "run.html").read_text()


def test_the_client_in_the_servers_page_is_a_program():
    [code] = re.findall(r"```python\n(.*?)```", PAGES["server.md"], re.DOTALL)
    compile(code, "server.md", "exec")


# Tables


def test_every_option_is_on_its_page():
    assert page() == PAGE.read_text(), "python -m tests.cli.options_page writes it anew"


def test_an_option_has_one_row():
    named = [row[0].split("`")[1] for row in rows(PAGE.read_text())[len(PROGRAMS) :]]
    assert len(named) == len(set(named))


def test_variables_are_few():
    assert len([each for each in VARIABLES if each.name.startswith("SPAC_")]) <= 10
    assert len(env.FORM.known) <= 8


def test_every_figure_is_in_the_statistics():
    named = [
        name
        for row in rows(PAGES["statistics.md"])
        for name in re.findall(r"`(\w+)`", row[0])
        if row[1] and row[2]  # the row has a meaning and something to change
    ]
    assert len(named) == len(set(named))
    assert set(named) == {item.name for item in dataclasses.fields(RunStats)}


def test_every_scheduler_has_its_table():
    text = PAGES["schedulers.md"]
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [title for title in titles if title in names()] == [
        re.findall(r"`(.+)`", row[0])[0] for row in rows(text) if row[0].strip("`") in names()
    ]
    assert {title for title in titles if title in names()} == set(names())


@pytest.mark.parametrize("name", names())
def test_every_option_of_a_scheduler(name):
    table = options_of(name)
    known = {item.name: item.default for item in dataclasses.fields(class_of(name).option_type)}
    assert {key: default for key, (default, _) in table.items()} == {
        key: written(value) for key, value in known.items()
    }
    for key, (_, bounds) in table.items():
        right, wrong = tried(bounds)
        for value in right:
            make(name, **{key: value})
        for value in wrong:
            with pytest.raises(InputError):
                make(name, **{key: value})


def options_of(name):
    """Return a scheduler's options by name, each with its default and range, as the page has them."""
    section = PAGES["schedulers.md"].split(f"\n## {name}\n")[1].split("\n## ")[0]
    return {row[0].strip("`"): (row[1], row[2]) for row in rows(section)}


def written(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value}"


def tried(bounds):
    """Return values within a range of the page, and values outside it."""
    if match := re.fullmatch(r"(\w+), or (.+ to .+)", bounds):
        right, wrong = tried(match[2])
        return [*right, match[1]], wrong
    if match := re.fullmatch(r"([\d.]+) to (below )?([\d.]+)", bounds):
        low, below, high = float(match[1]), match[2], float(match[3])
        if not below and high > 1:  # such ranges are of counts
            return [int(low), int(high)], [int(low) - 1, int(high) + 1]
        return [low, high - 1e-6], [low - 0.1, high if below else high + 0.1]
    if match := re.fullmatch(r"(?:(\w+), or )?at least (\d+)", bounds):
        least = int(match[2])
        return [least, least + 7, *filter(None, [match[1]])], [least - 1]
    if bounds == "on, off":
        return [True, False], ["maybe"]
    if bounds == "Python only":
        return [None], []
    return bounds.split(", "), ["nonsense"]


def test_every_command_of_the_chat():
    named = {row[0].strip("`").split()[0] for row in rows(PAGES["chat.md"]) if row[0].startswith("`/")}
    assert named == {f"/{name}" for name in COMMANDS}


def test_every_interface_of_the_server():
    named = {path for row in rows(PAGES["server.md"]) for path in re.findall(r"`(/\w[^`]*)`", row[0])}
    known = {*READS, *ANSWERS, *TOOLS, *SHORT, "/metrics", VRAM, SLOTS, f"{SLOTS}/ID?action=…"}
    assert named == known - {"/slots"} | {SLOTS}


def test_every_metric_of_the_server():
    named = {name for row in rows(PAGES["server.md"]) for name in re.findall(r"`(spac_\w+)`", row[0])}
    kinds = {f"spac_{name}" + ("_total" if kind is Counter else "") for kind, name, *_ in METRICS}
    assert named == kinds
