"""A grammar or a schema that would end, stop or fill the process is refused with the limit that it exceeds.

Each recipe runs in another process, with a bound on memory and time. One that is not refused would take the
tests' own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from spac import demo
from tests.cli.conftest import environment
from tools.hostile_grammars import GRAMMARS, LARGE, SCHEMAS, TOOLS

PROGRAM = """
import json, sys
from spac.config import EngineConfig, SamplingConfig
from spac.engine.chat_format import ChatFormat
from spac.engine import Engine
from spac.errors import InputError

given = json.load(sys.stdin)
engine = Engine(
    EngineConfig(target=given["model"], threads=1, ctx=256, state="off", parallel=given["parallel"])
)
THINKING = given["template"]

def said(call):
    try:
        return ["ok", call()]
    except InputError as error:
        return ["refused", str(error)]

def text(**sampling):
    return "".join(engine.generate("x", 60, sampling=SamplingConfig(temp=0, seed=1, **sampling)))

def prompt(**request):
    chat = ChatFormat(engine.target, THINKING)
    made = chat.prompt([{"role": "user", "content": "x"}], **request)
    if given["parallel"] == 1:
        list(engine.generate("x", 1, sampling=SamplingConfig(temp=0, seed=1), chat=made))  # makes the sampler
    return made.text

results = {}
for name, grammar in given["grammars"].items():
    results[name] = said(lambda: text(grammar=grammar))
for name, schema in given["schemas"].items():
    results["schema: " + name] = said(lambda: text(json_schema=schema))
    results["chat: " + name] = said(lambda: prompt(json_schema=schema))
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    results["tool: " + name] = said(lambda: prompt(tools=[tool], tool_choice="required"))
results["tools"] = said(lambda: prompt(tools=given["tools"], tool_choice="required"))
results["after"] = said(text)
print(json.dumps(results))
"""


def outcomes(parallel: int = 1, **given: Any) -> dict[str, Any]:
    """Return what became of each recipe in a process of its own."""
    from tests.chat.templates import THINKING

    asked = {
        "model": str(demo.TARGET), "parallel": parallel, "template": THINKING, "grammars": {}, "schemas": {},
        "tools": TOOLS, **given,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(asked), capture_output=True, text=True, timeout=100, env=environment(), check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results: dict[str, Any] = json.loads(done.stdout)
    assert results.pop("tools")[0] == "ok"
    assert results.pop("after")[0] == "ok"
    return results


def wrong(results: Mapping[str, list[str]], expected: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the results that are no refusal of one line with the expected text."""
    return {
        name: results[name]
        for name, cause in expected.items()
        if results[name][0] != "refused" or cause not in results[name][1] or "\n" in results[name][1]
    }


@pytest.mark.parametrize("parallel", [1, 2])
def test_grammars(parallel: int) -> None:
    results = outcomes(parallel, grammars={name: grammar for name, (grammar, _) in GRAMMARS.items()})
    assert wrong(results, {name: cause for name, (_, cause) in GRAMMARS.items()}) == {}


def test_schemas() -> None:
    results = outcomes(schemas={name: schema for name, (schema, _) in SCHEMAS.items()})
    doors = ("schema", "chat", "tool")
    assert wrong(results, {f"{door}: {name}": SCHEMAS[name][1] for name in SCHEMAS for door in doors}) == {}


def test_large_schemas_that_are_no_attack() -> None:
    results = outcomes(schemas={"large": LARGE})
    assert {kind for kind, _ in results.values()} == {"ok"}
    assert results["schema: large"][1].startswith("{")
