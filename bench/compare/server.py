"""llama.cpp as its users run it: a llama-server program, asked over HTTP; the times are the server's own."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from typing import Any

from bench.compare.job import Job, Result, Run


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def command(job: Job, port: int) -> list[str]:
    """The server's command line."""
    words = [job.program, "-m", job.target, "--host", "127.0.0.1", "--port", str(port), "-np", "1"]
    words += ["-c", str(job.ctx), "-t", str(job.threads), "--no-warmup"]
    if job.device == "cpu":
        words += ["-ngl", "0"]
    else:
        words += ["-ngl", "99", "-sm", "none", "-mg", re.sub(r"\D", "", job.device) or "0"]
        if job.n_cpu_moe:
            words += ["--n-cpu-moe", str(job.n_cpu_moe)]
    if job.draft and job.draft_length:
        words += [
            "-md",
            job.draft,
            "--spec-type",
            "draft-simple",
            "--spec-draft-n-max",
            str(job.draft_length),
            "--spec-draft-n-min",
            "0",
        ]
        words += ["-ngld", "0" if job.device == "cpu" else "99"]
    return words


def _ask(port: int, path: str, body: dict[str, Any] | None = None, timeout: float = 600) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)  # type: ignore[no-any-return]


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            _ask(port, "/health", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"llama-server ended with status {process.returncode}")


def _complete(port: int, prompt: list[int], n_predict: int) -> Run:
    body = {
        "prompt": prompt, "n_predict": n_predict, "temperature": 0, "top_k": 1, "seed": 1, "ignore_eos": True,
        "cache_prompt": False, "return_tokens": True,
    }  # fmt: skip
    answer = _ask(port, "/completion", body)
    times = answer["timings"]
    drafted, accepted = int(times.get("draft_n", 0)), int(times.get("draft_n_accepted", 0))
    n = int(times["predicted_n"])
    prefill_s = times["prompt_ms"] / 1e3
    return Run(
        prompt_tokens=len(prompt), prefill_s=prefill_s, first_token_s=prefill_s,
        decode_s=times["predicted_ms"] / 1e3, tokens=[int(token) for token in answer["tokens"]],
        steps=max(1, n - accepted), drafted=drafted, accepted=accepted,
    )  # fmt: skip


def run(job: Job) -> Result:
    """All prompts, one after another."""
    port = _free_port()
    begun = time.perf_counter()
    process = subprocess.Popen(command(job, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, port)
        load_s = time.perf_counter() - begun
        runs = [_complete(port, prompt, job.n_predict) for prompt in job.prompts]
    finally:
        process.terminate()
        process.wait()
    return Result(runs=[asdict(run) for run in runs], load_s=load_s)
