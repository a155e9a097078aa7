"""The server refuses grammars and schemas that would stop it, and goes on."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from spac import demo
from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions
from tests.chat.templates import THINKING
from tests.serve.conftest import Server
from tools.hostile_grammars import GRAMMARS, LARGE, SCHEMAS, TOOLS

USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server of its own: a recipe that is not refused would end or stop it."""
    fixed = ("--threads", "1", "--draft-length", "0", "--parallel", "2", "--ctx", "2048")
    folder = tmp_path_factory.mktemp("limits")
    server = Server(folder, fixed=fixed, template=THINKING, program="tests.serve.unpaused")
    yield server
    server.kill()


def refusal(server: Server, path: str, body: dict[str, Any]) -> str:
    """Return the message of a 400. The server still answers."""
    few = {"model": "demo", "max_tokens": 60, "temperature": 0}
    message = server.post(path, {**few, **body}, status=400)["error"]["message"]
    assert server.answers()
    return message


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(server, name):
    grammar, cause = GRAMMARS[name]
    assert cause in refusal(server, "/v1/completions", {"prompt": "x", "grammar": grammar})


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(server, name):
    schema, cause = SCHEMAS[name]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for asked in ({"response_format": form}, {"tools": [tool], "tool_choice": "required"}):
        assert cause in refusal(server, "/v1/chat/completions", {"messages": USER, **asked})


@pytest.mark.parametrize("name", ["items", "a loop"])
def test_schemas_at_other_doors(server, name):
    schema, cause = SCHEMAS[name]
    form = {"type": "json_schema", "name": "s", "schema": schema}
    tool = {"type": "function", "name": "f", "parameters": schema}
    theirs = {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}
    for path, body in (
        ("/completion", {"prompt": "x", "json_schema": schema}),
        ("/v1/responses", {"input": "x", "text": {"format": form}}),
        ("/v1/responses", {"input": "x", "tools": [tool], "tool_choice": "required"}),
        ("/v1/messages", {"messages": USER, **theirs}),
    ):
        assert cause in refusal(server, path, body), path


def test_large_schemas_that_are_no_attack(server):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": LARGE}}
    few = TOOLS[:2]
    for asked in ({"response_format": form}, {"tools": few, "tool_choice": "required"}, {"tools": few}):
        server.post("/v1/chat/completions", {"model": "demo", "messages": USER, "max_tokens": 20, **asked})
    asked = {"messages": USER, "tools": TOOLS, "tool_choice": "required"}
    assert "context" in refusal(server, "/v1/chat/completions", asked)


@pytest.mark.parametrize("of", ["grammar", "json_schema"])
def test_the_loop_goes_on_while_a_grammar_is_checked(of):
    held, goes_on = threading.Event(), threading.Event()
    many = {"enum": [f"word-{i}" for i in range(30_000)]}
    body = {"prompt": "x", of: GRAMMARS["doubled"][0] if of == "grammar" else many}

    def hold(_: object) -> None:
        held.set()
        goes_on.wait(60)

    config = EngineConfig(target=demo.TARGET, ctx=1024, parallel=2, threads=1, state="off")
    with Engine(config, serves=LoopOptions("demo")) as engine:
        engine.events.after_step.append(hold)
        running = engine.loop.begin("completion", b'{"prompt": "x", "n_predict": 5}')
        refused = engine.loop.begin("completion", json.dumps(body).encode())
        threads = [threading.Thread(target=each.run, daemon=True) for each in (running, refused)]
        threads[0].start()
        assert held.wait(60)
        threads[1].start()
        threads[1].join(60)
        done = not threads[1].is_alive()
        goes_on.set()
        for thread in threads:
            thread.join()
        assert (done, refused.status, running.status) == (True, 400, 200), refused.body
        assert b"too many alternatives" in refused.body
