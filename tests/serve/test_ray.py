"""Ray Serve with two engines of the demo pair, in one cluster. Without Ray, these tests are skipped."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from spac.errors import InputError
from spac.serve.ray import app, application
from spac.serve.ray.prefixes import BLOCK, Prefixes, prompt_text
from spac.serve.ray.replica import Ask, Replica
from tests.cli.conftest import ONE_THREAD, environment
from tests.serve.conftest import FIXED, wait_until

ROOT = Path(__file__).resolve().parents[2]
ENDLESS: dict[str, Any] = {"ignore_eos": True, "grammar": 'root ::= "a "*'}
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'spac[ray]'"
)


def test_a_conversation_continues_its_text() -> None:
    first = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}'
    second = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Yes"}]}'
    assert prompt_text(second).startswith(prompt_text(first))
    assert "Hi" in prompt_text(first)
    assert prompt_text(b'{"prompt": "abc"}') == "abc"
    assert prompt_text(b"[1]") == prompt_text(b"\xff") == prompt_text(b"[" * 100_000) == ""


def test_the_longest_beginning_is_found() -> None:
    known: Prefixes[str] = Prefixes(most=6)
    shared = "s" * BLOCK
    known.add(shared + "a" * BLOCK, "one")
    known.add(shared + "b" * BLOCK + "rest", "two")
    assert known.find(shared + "a" * BLOCK + "more", {"one", "two"}) == "one"
    assert known.find(shared + "b" * BLOCK, {"one", "two"}) == "two"
    assert known.find(shared + "a" * BLOCK, {"two"}) == "two"  # the shared part was read there last
    assert known.find(shared + "c" * BLOCK, {"one"}) is None
    assert known.find("x" * 5 * BLOCK, {"one", "two"}) is None
    known.add("y" * 6 * BLOCK, "one")
    assert known.find(shared, {"one", "two"}) is None  # forgotten


@pytest.mark.parametrize(
    ("arguments", "numbers", "told"),
    [
        (["--slots", "many"], {}, "--slots"),
        (["--no-such-option"], {}, "no-such-option"),
        ([], {"replicas": 0}, "1 or more"),
        ([], {"replicas": 3, "most_replicas": 2}, "3 to 2 replicas"),
        ([], {"gpus": -1}, "negative"),
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], numbers: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        application(arguments, **numbers)
    assert "\n" not in str(caught.value)


def test_unknown_names_of_a_configuration_file() -> None:
    with pytest.raises(InputError, match="unknown arguments: replica;"):
        app({"arguments": "--ctx 512", "replica": 2})


def test_a_replica_stops_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller leaves a stream. The engine's request ends before its tokens are all made."""
    monkeypatch.setenv("SPAC_DEVICE", "simulated")
    replica = Replica([*FIXED, "--ctx", "2048", "--quiet"], "")
    body = b'{"prompt": "x", "max_tokens": 1900, "stream": true, "ignore_eos": true, "temperature": 0}'
    path = "/v1/completions"
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        "http_version": "1.1",
    }  # fmt: skip

    async def leave() -> list[Any]:
        parts = replica.answer(Ask(scope, body, ""))
        async for messages in parts:
            if any(message.get("body") for message in messages):
                break
        contexts = list(replica._state.requests)
        await parts.aclose()  # type: ignore[attr-defined]
        while replica._state.requests:
            await asyncio.sleep(0.01)
        return contexts

    try:
        [context] = asyncio.run(leave())
        assert context.cancelled
    finally:
        replica.close()


class Cluster:
    """The example as a user starts it."""

    def __init__(self, *arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray"))  # pytest's folders are too long for Ray's sockets
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        err = self.folder / "stderr"
        self.mark = f"SPAC_TEST_CLUSTER={port}"
        with open(err, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "ray_serve.py"), "--cpus", "0.1",
                 "--port", str(port), *ONE_THREAD, "--draft-length", "8", *arguments],
                stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=self.folder,
                env=environment(
                    SPAC_TEST_CLUSTER=str(port), RAY_TMPDIR=str(self.folder), RAY_AUTH_MODE="disabled",
                    RAY_USAGE_STATS_ENABLED="0", RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="100",
                    RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="100", PYTHONPATH=os.pathsep.join(sys.path),
                ),
            )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.process.stdout.close()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def engines(self) -> list[int]:
        """Return the processes of the engines."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if "ServeReplica:default:engines" in (folder / "cmdline").read_text() and (
                    self.mark in (folder / "environ").read_text().split("\0")
                ):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def log(self) -> str:
        """Return what the engines' request logs say."""
        return "".join(path.read_text() for path in self.folder.glob("ray/session_2*/logs/worker-*.err"))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)


def skip_without_ray_serve(err: str) -> None:
    """Skip where Ray itself gives up: it waits a minute for its own processes."""
    if "Ray Serve did not start" in err:
        pytest.skip(f"this machine is too busy for Ray: {err.splitlines()[-1]}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster("--ctx", "2048", "--temp", "0")
    if not cluster.url.startswith("http://127.0.0.1:"):
        err = cluster.err
        cluster.stop()
        skip_without_ray_serve(err)
        pytest.fail(f"no cluster: {err}")
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cluster.url, api_key="none", max_retries=0, timeout=100) as client:
        yield client


@needs_ray
def test_conversations_find_their_engine(client: openai.OpenAI) -> None:
    """The first questions come at once and go to both engines. Each next one goes where its beginning is."""

    def ask(messages: list[Any]) -> Any:
        made = client.chat.completions.create(model="demo", messages=messages, max_tokens=16)
        messages.append({"role": "assistant", "content": made.choices[0].message.content})
        return made.usage

    talks = [[{"role": "user", "content": f"{i} and {i + 1}: " + f"def f{i}(x):\n" * 12}] for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(ask, talks))
    for talk, before in zip(talks, first, strict=True):
        talk.append({"role": "user", "content": "And then?"})
        assert ask(talk).prompt_tokens_details.cached_tokens > before.prompt_tokens / 2


@needs_ray
def test_a_client_that_leaves(cluster: Cluster, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="demo", prompt="x", max_tokens=1900, stream=True, extra_body=ENDLESS
    )
    next(iter(stream))
    stream.response.close()
    wait_until(lambda: "POST /v1/completions 499" in cluster.log(), 60)


@needs_ray
def test_what_is_of_one_engine_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="one of several engines"):
        client.get("/../slots", cast_to=object)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="demo", prompt="x", max_tokens=-5)


@needs_ray
def test_a_killed_engine_loses_only_its_streams(cluster: Cluster, client: openai.OpenAI) -> None:
    streams = [
        iter(
            client.completions.create(
                model="demo", prompt=text, max_tokens=1900, stream=True, extra_body=ENDLESS
            )
        )
        for text in "xy"
    ]
    for stream in streams:
        next(stream)
    victim, _ = cluster.engines()
    os.kill(victim, signal.SIGKILL)
    ends = []
    for stream in streams:
        try:
            ends.append([chunk for chunk in stream if chunk.choices][-1].choices[0].finish_reason)
        except openai.APIError as error:
            ends.append(str(error))
    assert sorted(ends)[0] == "length", ends
    assert "the engine of this request has ended" in sorted(ends)[1]
    made = client.completions.create(model="demo", prompt="def f(x):", max_tokens=8)
    assert made.usage is not None
    assert made.usage.completion_tokens == 8


@needs_ray
def test_an_engine_that_cannot_load_is_one_line() -> None:
    """It needs a cluster of its own: the driver ends with the line."""
    cluster = Cluster("--replicas", "1", "--target", "/no/such/model.gguf")
    try:
        assert cluster.process.wait(150) == 2
        skip_without_ray_serve(cluster.err)
        [line] = [line for line in cluster.err.splitlines() if line.startswith("error:")]
        assert "/no/such/model.gguf" in line
        assert "Traceback" not in cluster.err
    finally:
        cluster.stop()
