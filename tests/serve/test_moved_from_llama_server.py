"""A server that is moved from llama-server keeps its settings: options, and variables of the environment."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

import pytest

from spac.cli.llama_cpp_environment import options_of
from spac.serve.app import make_parser
from tests.chat.templates import THINKING
from tests.serve.conftest import Server

FORCED = 'root ::= "<think>\\nhmm, so\\n</think>\\n\\nyes" '
"""A grammar that fixes the answer's text."""


@pytest.fixture
def start(tmp_path):
    """Return `start(*arguments, key=, **variables)`, which starts a server. All are stopped in the end."""
    servers: list[Server] = []

    def starting(*arguments: str, key: str = "", **variables: str) -> Server:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(folder, "--ctx", "1024", *arguments, key=key, **variables))
        return servers[-1]

    yield starting
    for server in servers:
        assert server.stop() == 0


def status(server: Server, path: str, host: str | None = None, key: str = "") -> int:
    """Return the status of a request to a host, by HTTP/1.0 for a host that is ""."""
    connection: Any = http.client.HTTPConnection(server.address, timeout=60)
    if host == "":
        connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    connection.putrequest("GET", path, skip_host=host is not None)
    for name, value in (("Host", host), ("Authorization", key and f"Bearer {key}")):
        if value:
            connection.putheader(name, value)
    connection.endheaders()
    with closing(connection):
        return connection.getresponse().status


def test_a_key_of_llama_server_closes_the_server(start):
    server = start(LLAMA_API_KEY="secret", LLAMA_ARG_ALIAS="mine", LLAMA_ARG_ENDPOINT_SLOTS="0")
    assert [status(server, "/v1/models", key=key) for key in ("", "other", "secret")] == [401, 401, 200]
    assert status(server, "/slots", key="secret") == 501
    _, body = server.ask("GET", "/v1/models", key="secret")
    assert json.loads(body)["data"][0]["id"] == "mine"
    assert "LLAMA_API_KEY is read as --api-key" in server.err
    assert "secret" not in server.err
    both = start(key="ours", LLAMA_API_KEY="theirs", LLAMA_ARG_WHATEVER="1")
    assert [status(both, "/props", key=key) for key in ("theirs", "ours")] == [401, 200]
    assert "LLAMA_ARG_WHATEVER: no option of spac serve" in both.err


VARIABLES = {
    "LLAMA_ARG_CTX_SIZE=4096": ["--ctx-size=4096"], "LLAMA_ARG_N_PARALLEL=2": ["--parallel=2"],
    "LLAMA_ARG_THINK=none": ["--reasoning-format=none"], "LLAMA_ARG_UI=0": ["--no-ui"],
    "LLAMA_ARG_NO_UI=1": ["--no-ui"], "LLAMA_ARG_SKIP_CHAT_PARSING=on": ["--skip-chat-parsing"],
    "LLAMA_ARG_ENDPOINT_SLOTS=true": ["--slots"], "LLAMA_ARG_ENDPOINT_METRICS=1": ["--metrics"],
    "LLAMA_ARG_N_CPU_MOE=20": ["--n-cpu-moe", "20"], "LLAMA_ARG_NO_MMAP=1": ["--no-mmap"],
    "LLAMA_ARG_EMBEDDINGS=maybe": [], "LLAMA_ARG_NEW_THING=1": [], "LLAMA_CACHE=/tmp": None, "OTHER=1": None,
}  # fmt: skip


@pytest.mark.parametrize(("variable", "words"), VARIABLES.items())
def test_variables_are_options(variable, words):
    parser = make_parser()
    foreign = {flag: each.n_values for flag, each in parser._foreign.items()}
    name, _, value = variable.partition("=")
    found = list(options_of({name: value}, parser._option_string_actions, foreign))
    assert found == ([] if words is None else [(name, words)])


def test_the_command_line_comes_first(monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_PORT", "9000")
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    options = make_parser().parse_args(["--port", "9001", "--slots"])
    assert (options.port, options.host, options.slots.is_auto) == (9001, "0.0.0.0", True)
    assert make_parser().parse_args(["--slots", "40%"]).slots.share == 0.4


def test_a_variable_with_a_bad_value_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("LLAMA_ARG_PORT", "many")
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([])
    assert ended.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_name_that_leads_here_reads_nothing(start):
    """A web page can let its own name lead to 127.0.0.1, and its requests are then of its own origin."""
    server = start()
    for path in ("/", "/slots", "/props", "/page/events", "/v1/models", "/metrics"):
        for host in ("attacker.example:8000", "localhost.attacker.example"):
            assert status(server, path, host) == 403, path
    assert status(server, "/health", "attacker.example") == 200
    # HTTP/1.0 has no Host.
    for host in ("127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:1", "192.168.0.7:1", ""):
        assert status(server, "/v1/models", host) == 200, host
    closed = start(key="secret")
    assert status(closed, "/v1/models", "attacker.example", key="secret") == 200


def test_several_names(start):
    server = start("--alias", "b, a", "--strict-model", "--no-ui", "--no-slots")
    for name, code in (("a", 200), ("b", 200), ("c", 404)):
        body = {"prompt": "x", "max_tokens": 1, "model": name}
        assert server.ask("POST", "/v1/completions", body)[0] == code
        assert status(server, f"/v1/models/{name}") == code
    assert [status(server, path) for path in ("/", "/slots", "/v1/models")] == [404, 501, 200]


@pytest.mark.parametrize(
    ("options", "is_apart"),
    [
        (("--webui", "--slots"), True), (("--reasoning-format", "none"), False),
        (("--skip-chat-parsing",), False),
    ],
)  # fmt: skip
def test_where_reasoning_is_shown(start, options, is_apart):
    server = start(*options, template=THINKING)
    assert status(server, "/") == 200
    asked = {"messages": [{"role": "user", "content": "x"}], "grammar": FORCED, "temperature": 0}
    message = server.post("/v1/chat/completions", asked)["choices"][0]["message"]
    assert (message.get("reasoning_content") or "").strip() == ("hmm, so" if is_apart else "")
    assert message["content"].strip() == ("yes" if is_apart else "<think>\nhmm, so\n</think>\n\nyes")


def test_variables_of_a_template(start):
    template = "[{{ reasoning_effort }}|{{ preserve_reasoning }}]{{ messages[0].content }}"
    for options, prompt in (
        (("--reasoning-effort", "low", "--no-reasoning-preserve"), "[low|False]x"),
        (("--reasoning-effort", "default"), "[|True]x"),
    ):
        server = start(*options, template=template)
        asked = {"messages": [{"role": "user", "content": "x"}]}
        assert server.post("/apply-template", asked)["prompt"] == prompt
