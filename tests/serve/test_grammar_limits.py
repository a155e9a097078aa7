"""The server refuses grammars and schemas that would stop it, and goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
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


@pytest.fixture(scope="module", params=["1", "2"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of its own: a recipe that is not refused would end or stop it."""
    folder = tmp_path_factory.mktemp("limits")
    template = folder / "template.jinja"
    template.write_text(THINKING)
    options = ("--threads", "1", "--draft-length", "0", "--parallel", request.param)
    server = Server(folder, "--ctx", "2048", "--chat-template-file", str(template), fixed=options)
    yield server
    server.kill()


def refusal(server: Server, path: str, body: dict[str, Any]) -> str:
    """Return the message of a 400."""
    status, answer = server.ask("POST", path, {"model": "demo", "max_tokens": 60, "temperature": 0, **body})
    assert status == 400, (status, answer[:500])
    return str(json.loads(answer)["error"]["message"])


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(server: Server, name: str) -> None:
    grammar, cause = GRAMMARS[name]
    assert cause in refusal(server, "/v1/completions", {"prompt": "x", "grammar": grammar})
    assert server.answers()


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(server: Server, name: str) -> None:
    schema, cause = SCHEMAS[name]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert cause in refusal(server, "/v1/chat/completions", {"messages": USER, "response_format": form})
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    asked = {"messages": USER, "tools": [tool], "tool_choice": "required"}
    assert cause in refusal(server, "/v1/chat/completions", asked)
    assert server.answers()


@pytest.mark.parametrize("name", ["enum", "items", "a loop"])
def test_schemas_at_other_doors(server: Server, name: str) -> None:
    schema, cause = SCHEMAS[name]
    form = {"type": "json_schema", "name": "s", "schema": schema}
    tool = {"type": "function", "name": "f", "parameters": schema}
    for path, body in [
        ("/completion", {"prompt": "x", "json_schema": schema}),
        ("/v1/responses", {"input": "x", "text": {"format": form}}),
        ("/v1/responses", {"input": "x", "tools": [tool], "tool_choice": "required"}),
        (
            "/v1/messages",
            {
                "messages": USER,
                "tools": [{"name": "f", "input_schema": schema}],
                "tool_choice": {"type": "any"},
            },
        ),
    ]:
        assert cause in refusal(server, path, body), path
    assert server.answers()


def test_large_schemas_that_are_no_attack(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": LARGE}}
    few = TOOLS[:2]
    for asked in ({"response_format": form}, {"tools": few, "tool_choice": "required"}, {"tools": few}):
        body = {"model": "demo", "messages": USER, "max_tokens": 20, **asked}
        status, answer = server.ask("POST", "/v1/chat/completions", body)
        assert status == 200, answer[:500]
    asked = {"messages": USER, "tools": TOOLS, "tool_choice": "required"}
    assert "context" in refusal(server, "/v1/chat/completions", asked)


@pytest.mark.parametrize("of", ["grammar", "json_schema"])
def test_the_loop_goes_on_while_a_grammar_is_checked(of: str) -> None:
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
