"""A server as a user starts it, with the demo pair. All tests share one, because it loads a model."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import anthropic
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chat.templates import THINKING
from tests.cli.conftest import ONE_THREAD, environment
from tests.forked import Process, Programs

KEY = "a key"
QUEUE = 6
EMBEDS = ("--embeddings", "--pooling", "last")
FIXED = (*ONE_THREAD, "--draft-length", "8", "--parallel", "1")
"""Options of the tests' servers. No text depends on times, and the request queue is easily filled."""


class Server:
    """The running process, as its clients see it."""

    programs: Programs | None = None
    """The starter of processes. Without one, Python starts anew."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        fixed: Sequence[str] = FIXED,
        key: str = KEY,
        template: str = "",
        program: str = "spac",
        **variables: str,
    ) -> None:
        self._err = folder / "stderr"
        self._clients: list[openai.OpenAI | anthropic.Anthropic] = []
        words = ["serve", "--port", "0", *fixed, *arguments]
        if template:
            (folder / "template.jinja").write_text(template)
            words += ["--chat-template-file", str(folder / "template.jinja")]
        variables = environment(SPAC_API_KEY=key, **variables)
        self.process: Process | subprocess.Popen[str]
        with open(self._err, "wb") as err:
            if self.programs is not None:
                self.process = self.programs.start(program, words, folder, variables, err)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=err, text=True, cwd=folder, env=variables,
                )  # fmt: skip
        self.url = self.process.stdout.readline().strip()
        self.process.stdout.close()
        if not self.url.startswith("http://127.0.0.1:"):
            self.kill()
            pytest.fail(f"no server: {self.err}")
        self.address = self.url.split("/")[2]
        socket.create_connection(("127.0.0.1", int(self.address.split(":")[1]))).close()  # it listens already
        wait_until(self.answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server. A test fails if the server did not end well."""
        assert self.stop() == 0

    @property
    def err(self) -> str:
        return self._err.read_text()

    def client(self, key: str = KEY) -> openai.OpenAI:
        client = openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=60)
        self._clients.append(client)
        return client

    def anthropic(self, key: str = KEY) -> anthropic.Anthropic:
        base = self.url.removesuffix("/v1")
        client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=60)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """End the process in any state."""
        self.process.kill()
        self.process.wait()
        for client in self._clients:
            client.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal unless the process has ended. Return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        for client in self._clients:
            client.close()
        assert "Traceback" not in self.err
        return code

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=60)

    def ask(
        self, method: str, path: str, body: bytes | str | dict | None = None, key: str = KEY
    ) -> tuple[int, bytes]:
        """Send a request by hand. Return its status and body."""
        connection = self.connection()
        try:
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, {"authorization": f"Bearer {key}"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: dict | None = None, *, status: int = 200, **fields: object) -> Any:
        """Send a JSON object. Check the status, and return what the answer's JSON holds."""
        got, answer = self.ask("POST", path, {**(body or {}), **fields})
        assert got == status, answer[:2000]
        return json.loads(answer)

    def refusal(self, path: str, body: dict, status: int = 400) -> str:
        """Return the message of a refusal, which is one line."""
        message = self.post(path, body, status=status)["error"]["message"]
        assert "\n" not in message
        return message

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer[:2000]
        return json.loads(answer)

    def events(self, path: str, body: dict) -> list[dict]:
        """Return the data of a stream's events."""
        status, answer = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, answer[:2000]
        lines = answer.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def stream(self, path: str, body: dict) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return a connection, and its stream of which the first line was read."""
        connection = self.connection()
        headers = {"authorization": f"Bearer {KEY}"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        response = connection.getresponse()
        assert response.readline().startswith(b"data:")
        return connection, response

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples that have these labels."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics")[1].decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for an event of another thread or process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def starter(programs):
    Server.programs = programs


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Yield the demo pair as "demo", with a key, embeddings, a queue of QUEUE places, a context of 2048."""
    options = ("--queue", str(QUEUE), "--ctx", "2048", *EMBEDS)
    with Server(tmp_path_factory.mktemp("server"), *options) as server:
        yield server


@pytest.fixture(scope="session")
def thinking_server(tmp_path_factory):
    """Yield the demo pair with a chat template that knows reasoning and tools. A grammar makes the model
    generate a given text. So its parsed form is known beforehand."""
    options = ("--ctx", "1024", "--temp", "0", "--repeat-penalty", "1.3", "--draft-length", "0")
    with Server(tmp_path_factory.mktemp("thinking"), *options, template=THINKING) as server:
        yield server


class Long:
    """A stream that keeps the model busy for some seconds, until the client leaves it."""

    TOKENS = 1900

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        bias = {"0": -100.0}  # the demo's end token
        self.stream = self._client.completions.create(
            model="demo", prompt="x", max_tokens=self.TOKENS, temperature=0, logit_bias=bias, stream=True
        )
        self.first = next(iter(self.stream))

    def leave(self) -> None:
        self.stream.response.close()


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Start `call` in a thread. Its result, or the exception that it raised, is appended to the list."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, results


def tokens_on_page(server: Server, ask: Callable[[], object]) -> int:
    """Return the tokens that the page's feed shows while `ask` is answered."""
    return sum(each["tokens"] for each in snapshots_on_page(server, ask))


def snapshots_on_page(server: Server, ask: Callable[[], object]) -> list[dict]:
    """Return the snapshots of the page's feed while `ask` is answered."""
    connection = server.connection()
    connection.request("GET", "/page/events", headers={"authorization": f"Bearer {KEY}"})
    thread, _ = in_thread(ask)
    seen: list[dict] = []
    with connection.getresponse() as response:
        while not any(each["tokens"] for each in seen) or seen[-1]["phase"] != "idle":
            line = response.readline()
            if line.startswith(b'data: {"phase"'):
                seen.append(json.loads(line[6:]))
    thread.join()
    connection.close()
    return seen
