"""A peer of the comparison is any server of OpenAI's completions. It can fail in many ways."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bench import processes
from bench.__main__ import main
from bench.client import Chunk, Client
from bench.compare import comparison, peer, rivals
from bench.compare.job import Job, Result, Run
from bench.processes import PeerError, Server
from tests.bench.comparisons import comparison_of

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "python" / "spac" / "demo"
FAKE = '''
"""A server of streamed completions. Arguments: how it behaves, its port, its threads."""
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

way, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TOKENS = 6
if way == "dies":
    print("loading\\nno such model", flush=True)
    sys.exit(3)
if way == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, data):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def do_GET(self):
        if way == "hangs":
            time.sleep(60)
        if self.path == "/health" and way == "plain":
            return self.answer(404, {})
        self.answer(503 if way == "loads" else 200, {"data": [{"id": "its name"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != "its name" or way == "errs":
            return self.answer(500, {"error": {"message": "out of\\nmemory"}})
        if way == "plain" and (isinstance(body["prompt"], list) or "ignore_eos" in body):
            return self.answer(400, {"error": "unknown"})
        self.send_response(200)
        self.end_headers()
        n = 1 if way == "whole" else TOKENS
        for i in range(n):
            self.event({"choices": [{"text": f" {body['prompt'][0]}", "finish_reason": None}]})
            time.sleep(0.04 / threads)
            if way == "breaks":
                print("assertion failed", flush=True)
                os._exit(9)
            if way == "fails":
                return self.event({"error": {"message": "the cache is full"}})
        end = {"choices": [{"text": "", "finish_reason": "length" if way == "plain" else "stop"}]}
        if way != "plain":
            end |= {"usage": {"completion_tokens": TOKENS, "prompt_tokens": len(body["prompt"])}}
        self.event(end)
        self.wfile.write(b"data: [DONE]\\n\\n")

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\\n\\n")

memory = bytearray(b"x" * (64 << 20))
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the script of a server. Return its path."""
    path = tmp_path_factory.mktemp("a folder") / "fake.py"  # the path has a blank
    path.write_text(FAKE)
    return path


def job_of(fake: Path, way: str, **values: object) -> Job:
    command = f"{sys.executable} {shlex.quote(str(fake))} {way} {{port}} {{threads}} {{target}}"
    standard = {"kind": "peer", "target": "a model.gguf", "prompts": [[5, 7], [8, 9, 1]], "n_predict": 6}
    standard |= {"ctx": 64, "threads": 2, "device": "cpu", "command": command, "texts": ["five", "eight"]}
    return Job(**{**standard, **values})  # type: ignore[arg-type]


def running(fake: Path) -> list[int]:
    """Return the processes of that script."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(fake).encode() in words and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def test_a_server_is_started_asked_measured_and_stopped(fake: Path, tmp_path: Path) -> None:
    result = peer.run(job_of(fake, "good"), tmp_path / "log", 30)
    assert result.error == ""
    first, second = result.each
    assert (first.text, second.text) == (" 5" * 6, " 8" * 6)  # the tokens were sent
    assert (first.n_tokens, first.prompt_tokens, second.prompt_tokens) == (6, 2, 3)
    # Each token takes 20 ms, and the first one does not count.
    assert first.decode_speed == pytest.approx(50, rel=0.3)
    assert 0 < first.first_token_s < 0.5
    assert 64 << 20 < result.peak_ram < 1 << 30
    assert result.load_s > 0
    assert result.notes == ["prompts sent as tokens", "tokens counted by its usage"]
    assert running(fake) == []


def test_a_server_that_knows_openais_fields_alone(fake: Path, tmp_path: Path) -> None:
    result = peer.run(job_of(fake, "plain"), tmp_path / "log", 30)
    assert result.error == ""
    assert [run.text for run in result.each] == [" f" * 6, " e" * 6]
    assert result.each[0].n_tokens == 6
    assert result.notes == [
        "prompts sent as text, with OpenAI's fields alone",
        "tokens counted by the limit, which it reached",
    ]


@pytest.mark.parametrize(
    ("way", "seconds", "said"),
    [
        ("dies", 30, "ended with status 3: loading / no such model"),
        ("breaks", 30, "ended with status 9: assertion failed"),
        ("errs", 30, "it answered with status 500: out of memory"),
        ("fails", 30, "it answered with an error: the cache is full"),
        ("whole", 30, "it answered all in one piece, which has no decoding speed"),
        ("hangs", 1, "not done within 1 s: no answer at port"),
        ("loads", 1, "not done within 1 s: status 503 at /health; its last lines: no output"),
    ],
)
def test_what_goes_wrong_is_one_line(fake: Path, tmp_path: Path, way: str, seconds: float, said: str) -> None:
    result = peer.run(job_of(fake, way), tmp_path / "log", seconds)
    assert result.error.startswith(said)
    assert "\n" not in result.error
    assert result.runs == []
    assert running(fake) == []


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    result = peer.run(job_of(tmp_path, "", command="./none {target} {port}"), tmp_path / "log", 30)
    assert result.error == "./none cannot be started: No such file or directory"


def test_nobody_else_answers_for_a_server(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server listens at its port, and reports that it is ready."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        monkeypatch.setattr(peer, "free_port", lambda: other.server_address[1])
        monkeypatch.setattr(peer, "ENDING_S", 10)  # longer than Python takes to start
        result = peer.run(job_of(fake, "good"), tmp_path / "log", 30)
        other.shutdown()
    assert result.error.startswith("ended with status 1: ")
    assert "Address already in use" in result.error


def test_all_processes_of_a_server_end(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes behind a shell end too, and so do those that ignore the request to stop."""
    monkeypatch.setattr(processes, "STOP_S", 0.3)
    inner = f"{sys.executable} {shlex.quote(str(fake))} stays $0 1 & wait"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    with Server(["sh", "-c", inner, str(port)], tmp_path / "log") as subject:
        Client(subject, port, time.monotonic() + 30).wait()
        assert len(running(fake)) == 2
        assert subject.peak_ram > 64 << 20  # the shell's child holds this memory
    assert running(fake) == []


def run_of(texts: list[tuple[float, str]], end: dict[str, object]) -> tuple[Run, list[str]]:
    """Return a client's result for an answer whose chunks came at these times. The request was sent at 0."""
    empty: dict[str, object] = {"usage": {}, "timings": {}, "reason": None}
    chunks = [Chunk(time=at, text=text, **empty) for at, text in texts]  # type: ignore[arg-type]
    chunks.append(Chunk(time=9.0, text="", **{**empty, **end}))  # type: ignore[arg-type]
    asked = peer.Asked()
    return asked.run_of(chunks, 0.0, 10, 8), list(asked.notes)


def test_the_first_step_is_not_in_the_decoding_speed() -> None:
    """The first step gives three tokens and takes as long as the prompt. The next two take a second each."""
    texts = [(2.0, "a"), (2.0, "b"), (2.001, "c"), (3.0, "d"), (3.0, "e"), (4.0, "f")]
    timings = {"predicted_n": 6, "draft_n": 8, "draft_n_accepted": 3, "predicted_ms": 4000}
    run, notes = run_of(texts, {"timings": timings})
    assert run.first_token_s == 2.0
    assert run.decode_speed == pytest.approx(3 / 1.999)
    assert (run.steps, run.drafted, run.accepted) == (3, 8, 3)
    assert notes == ["tokens counted by its timings", "6 tokens in place of 8"]
    # A chunk has two tokens, and the server does not report steps.
    run, notes = run_of(texts[2:], {"usage": {"completion_tokens": 8, "prompt_tokens": 11}})
    assert run.decode_speed == pytest.approx(6 / 1.999)
    assert run.steps == 0
    assert notes == ["tokens counted by its usage", "it read 11 tokens for 10"]
    run, notes = run_of(texts, {"reason": "stop"})
    assert notes == ["tokens counted by its chunks", "6 tokens in place of 8"]
    _, notes = run_of(texts, {"timings": {"predicted_n": 8, "predicted_ms": 1000}})
    assert notes[-1] == "its own timings say another speed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("./server", "NAME=COMMAND"),
        ("=./server {target} {port}", "NAME=COMMAND"),
        ("a=", "NAME=COMMAND"),
        ("a=./server 'x {target} {port}", "No closing quotation"),
        ("a=./server {model} {port}", "has {model}; what can be filled in is {target}, {draft}, "),
        ("a=./server {target}", "has no {port}"),
        ("a=./server {port}", "has no {target}"),
    ],
)
def test_what_is_no_peer_is_refused(text: str, said: str) -> None:
    with pytest.raises(PeerError) as caught:
        rivals.peer(text)
    assert said in str(caught.value)


def test_a_command_is_filled_in(fake: Path) -> None:
    found = rivals.peer("""a b = run -m {target} -c {ctx} -p={port} -j '{"a": {}}' -n {n_cpu_moe}""")
    assert (found.name, found.tuned, found.speculates) == ("a b", True, False)
    words = rivals.words(job_of(fake, "", command=found.command, n_cpu_moe=3), 1234)
    assert words == ["run", "-m", "a model.gguf", "-c", "64", "-p=1234", "-j", '{"a": {}}', "-n", "3"]


ALONE = ("--brief", "--only", "nothing else", "--threads", "3", "2")


def test_peers_are_rows_with_threads_of_their_own(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: dict[str, Job] = {}

    def run_cell(job: Job, work: Path, key: str, _reference: Path | None, _seconds: float) -> Result:
        jobs[key] = job
        job.write(work / f"{key}.job.json")
        runs = [asdict(Run(8, 0.5, 0.6, float(job.threads or 1), [1, 2], 2))] * 2
        result = Result(runs=runs)
        result.write(work / f"{key}.json")
        return result

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    plain, both = "plain=run {target} {port}", "both={} {{target}} {{draft}} {{port}} -t {{threads}}".format

    def subject_of(*peers: str, draft: bool = True) -> comparison.Comparison:
        return comparison_of(twin, tmp_path, *ALONE, *(f"--peer={each}" for each in peers), draft=draft)

    subject = subject_of(plain, both("run"), "plain=again {target} {port}")
    subject.run()
    assert subject.not_run == ["peer plain: another row has this name"]
    sweep = ["threads-peer_both__draft-3", "threads-peer_both__draft-2"]
    assert list(jobs) == [*sweep, "plain-any-64", "both__draft-any-64"]
    assert [job.threads for job in jobs.values()] == [3, 2, 0, 2]
    assert [bool(job.draft) for job in jobs.values()] == [True, True, False, True]
    assert all(job.texts == [subject.text_of(prompt) for prompt in job.prompts] for job in jobs.values())
    # A finished cell runs again only with another command.
    jobs.clear()
    subject_of(plain, both("walk")).run()
    assert list(jobs) == [*sweep, "both__draft-any-64"]
    alone = subject_of("both=run {target} {draft} {port}", draft=False)
    assert alone.not_run == ["peer both: its command has {draft}: give --draft FILE"]


def test_spacs_own_server_is_a_peer(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server runs with the bundled pair. A peer that fails is named, and the other rows still run."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    )
    serve = f"{sys.executable} -m spac serve --target {{target}} --draft {{draft}} --draft-length 3"
    serve += " --device cpu --threads {threads} --ctx {ctx} --port {port}"
    words = [
        "compare",
        str(tmp_path),
        "--target",
        str(DEMO / "target.gguf"),
        "--draft",
        str(DEMO / "draft.gguf"),
    ]
    words += ["--device", "simulated", "--quick", "--brief", "--contexts", "24", "--threads", "1"]
    words += ["--reference", str(tmp_path), "--only", "spac logistic, no draft", "--text", __file__]
    words += ["--peer", f"serve={serve}", "--peer", f"broken={sys.executable} {shlex.quote(str(fake))} dies"
              " {port} 1 {target}", "--peer", "nothing"]  # fmt: skip
    assert main(words) == 1
    found = json.loads((tmp_path / "compare.json").read_text())["figures"]
    assert found["not_run"] == [
        "peer nothing: --peer takes NAME=COMMAND",
        "broken-any-24: ended with status 3: loading / no such model",
    ]
    rows = {row["engine"]: row for row in found["rows"]}
    assert set(rows) == {"spac logistic, no draft", "serve, draft"}
    mine = rows["serve, draft"]
    assert mine["kind"] == "peer"
    assert mine["same_text"]
    assert min(mine[name] for name in ("decode", "prefill", "first_token_s", "ram", "load_s")) > 0
    out = capsys.readouterr().out
    assert f"Peer serve, draft: `{serve}`; prompts sent as tokens" in out
    assert "peer (serve, draft)" in out
