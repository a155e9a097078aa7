"""Each program of examples/ runs with the demo pair, as a reader would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from spac.demo import TARGET
from tests.cli.conftest import ONE_THREAD, environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRIED = {"generate.py", "chat.py", "server_client.py", "unchanged_app.py", "custom_scheduler.py"}


def run(name, *arguments, stdin="", before=(), **extra):
    done = subprocess.run(
        [sys.executable, *before, str(EXAMPLES / name), *arguments],
        input=stdin, env=environment(**extra), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def test_every_example_is_tried():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TRIED


def test_generate():
    out, err = run("generate.py")
    assert out.startswith("Once upon a time, ")
    assert len(out) > 60
    assert "tokens/s" in err


def test_an_unchanged_app():
    out, _ = run("unchanged_app.py", str(TARGET), before=["-m", "spac", "exec", "--slots", "25%"])
    assert len(out) > 60


def test_chat():
    out, err = run("chat.py", stdin="Tell me a story about a cat.\nTell me a story about a dog.\n\n")
    assert len(out) > 60
    assert "tokens/s" in err


def test_custom_scheduler():
    out, _ = run("custom_scheduler.py")
    assert re.fullmatch(
        r"most-used: hit rate [\d.]+%, \d+ uploads\nlru: hit rate [\d.]+%, \d+ uploads\n", out
    )


def test_server_client(tmp_path):
    key = "a key"
    with open(tmp_path / "stderr", "w") as err:
        server = subprocess.Popen(
            [sys.executable, "-m", "spac", "serve", "--port", "0", *ONE_THREAD],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp_path,
            env=environment(SPAC_API_KEY=key),
        )  # fmt: skip
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url, (tmp_path / "stderr").read_text()
        out, err = run("server_client.py", url, SPAC_API_KEY=key)
        assert out.startswith("Once upon a time, there was a cat")
        assert len(out) > 40
        assert "model demo: " in err
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
