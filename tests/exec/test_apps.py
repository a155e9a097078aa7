"""Published libraries give the same answers on stock llama.cpp and with `spac exec`."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.exec.conftest import EXEC
from tests.llama_cpp_python.conftest import DRAFT, TARGET

pytestmark = pytest.mark.nightly

APPS = {"langchain_app.py": "langchain_community", "haystack_app.py": "haystack_integrations"}
OPTIONS = ("--slots", "25%", "--draft", DRAFT)
NO_TELEMETRY = {"HAYSTACK_TELEMETRY_ENABLED": "False"}


@pytest.mark.parametrize("name", APPS)
def test_the_same_answers_as_stock(run_python, run_exec, reference_lib: Path, name):
    if importlib.util.find_spec(APPS[name]) is None:
        pytest.skip(f"{APPS[name]} is not installed")
    app = Path(__file__).with_name(name)
    with ThreadPoolExecutor() as both:  # each has one thread that computes, and imports for most of its time
        running = both.submit(run_python, app, TARGET, LLAMA_CPP_LIB_PATH=str(reference_lib), **NO_TELEMETRY)
        split = run_exec(*OPTIONS, app, TARGET, **NO_TELEMETRY)
    stock = running.result()
    assert stock.code == 0, stock.err
    assert split.code == 0, split.err
    expected, answers = json.loads(stock.out), json.loads(split.out)
    assert set(expected.pop("kinds")) == {"llama_cpp.llama"}
    assert set(answers.pop("kinds")) == {"spac.llama_cpp_python.llama"}
    assert answers == expected
    assert all(expected.values())


WORKER = f"""
import os
import llama_cpp
llm = llama_cpp.Llama({str(TARGET)!r}, n_ctx=64, n_threads=1, verbose=False)
async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = f"{{os.getpid()}} {{llm.engine.config.slots}}".encode()
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": body}})
"""
COMMAND = f"#!{sys.executable}\nfrom uvicorn import main\nif __name__ == '__main__':\n    main()\n"


def answer(port: int) -> str:
    """Return the server's answer, as soon as it listens."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as response:
                return str(response.read().decode())
        except OSError:  # no connection yet
            time.sleep(0.1)
    raise TimeoutError


def test_uvicorns_workers(tmp_path):
    pytest.importorskip("uvicorn")
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "a-server").write_text(COMMAND)
    (tmp_path / "a-server").chmod(0o755)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = ["--slots", "9", "a-server", "worker:app", "--workers", "2", "--port", str(port)]
    server = subprocess.Popen([*EXEC, *words], cwd=tmp_path, env=environment(PATH=str(tmp_path)))
    try:
        pid, slots = answer(port).split()
    finally:
        server.terminate()
        server.wait(30)
    assert int(pid) != server.pid
    assert slots == "9"
