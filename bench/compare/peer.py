"""Measure peers: servers of OpenAI's completions, on the client's side."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.client import Chunk, Client, RefusedError
from bench.compare.job import Job, Result, Run
from bench.compare.rivals import words
from bench.compare.vram import VramMeter
from bench.processes import PeerError, Server, free_port

ENDING_S = 0.5  # seconds: a server that has failed may be about to end, which explains more
BURST_S = 0.002  # seconds: chunks that come closer than this to the first one are of the same step
APART = 1.25  # ratio from which on a server's own speed counts as different from the client's
FORMS = (
    (True, True, "prompts sent as tokens"),
    (False, True, "prompts sent as text"),
    (False, False, "prompts sent as text, with OpenAI's fields alone"),
)
"""The forms of a request, tried in turn: as tokens, with llama.cpp's fields, and the page's words for it."""


def run(job: Job, log: Path, seconds: float) -> Result:
    """Return a peer's results on all prompts, or the error where it failed."""
    begun, port, asked = time.monotonic(), free_port(), Asked()
    try:
        with VramMeter(job.device) as meter, Server(words(job, port), log) as server:
            client = Client(server, port, begun + seconds)
            try:
                client.wait()
                load_s = time.monotonic() - begun
                prompts = zip(job.prompts, job.texts, strict=True)
                runs = [asked.complete(client, tokens, text, job.n_predict) for tokens, text in prompts]
            except PeerError:
                server.check(ENDING_S)
                raise
            server.check()  # even if another one answered at its port
            peak_ram = server.peak_ram
    except PeerError as error:
        return Result(error=str(error), threads=job.threads)
    return Result(
        runs=[asdict(each) for each in runs], load_s=load_s, peak_ram=peak_ram, peak_vram=meter.used,
        threads=job.threads, notes=list(asked.notes),
    )  # fmt: skip


class Asked:
    """The form in which a server takes requests, and notes on how it answers."""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}  # how prompts were sent and tokens counted, in order
        self._form = 0

    def complete(self, client: Client, prompt: list[int], text: str, n_predict: int) -> Run:
        """Return the greedy continuation of a prompt. The prompt is sent as tokens, or as text where tokens
        are refused."""
        while True:
            as_tokens, extended, note = FORMS[self._form]
            body: dict[str, Any] = {
                "prompt": prompt if as_tokens else text,
                "max_tokens": n_predict,
                "temperature": 0,
            }
            if extended:  # llama.cpp's fields: the text never ends early, and every prompt is read
                body |= {
                    "stream_options": {"include_usage": True},
                    "n_predict": n_predict,
                    "ignore_eos": True,
                }
                body |= {"cache_prompt": False, "top_k": 1, "seed": 1}
            begun = time.perf_counter()
            try:
                with client.explained():
                    chunks = list(client.stream(body))
            except RefusedError:
                if self._form == len(FORMS) - 1:
                    raise
                self._form += 1
                continue
            self.notes[note] = None
            return self.run_of(chunks, begun, len(prompt), n_predict)

    def run_of(self, chunks: list[Chunk], begun: float, n_prompt: int, n_predict: int) -> Run:
        """Compute the times of an answer.

        The decoding speed is that of the tokens behind the first step's, because the first step's time
        includes the prompt's. `decode_s` is the time of all tokens at that speed.
        """
        timed = [chunk for chunk in chunks if chunk.text]
        if len(timed) < 2:
            what = "nothing" if not timed else "all in one piece, which has no decoding speed"
            raise PeerError(f"it answered {what}")
        first, last = timed[0].time, timed[-1].time
        n_first = sum(chunk.time - first <= BURST_S for chunk in timed)
        if n_first == len(timed):
            n_first = 1
        usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), {})
        timings = next((chunk.timings for chunk in reversed(chunks) if chunk.timings), {})
        counts = {
            "its usage": usage.get("completion_tokens"), "its timings": timings.get("predicted_n"),
            "the limit, which it reached": n_predict if chunks[-1].reason == "length" else None,
            "its chunks": len(timed),
        }  # fmt: skip
        how, n = next((how, int(n)) for how, n in counts.items() if n)  # the most reliable source
        self.notes[f"tokens counted by {how}"] = None
        if n != n_predict:
            self.notes[f"{n} tokens in place of {n_predict}"] = None
        read = usage.get("prompt_tokens", n_prompt)
        if read != n_prompt:
            self.notes[f"it read {read} tokens for {n_prompt}"] = None
        speed = n / timings["predicted_ms"] * 1e3 if timings.get("predicted_ms") else 0.0
        drafted, accepted = (int(timings.get(name) or 0) for name in ("draft_n", "draft_n_accepted"))
        share = 1 - n_first / len(timed)  # share of the tokens that are behind the first step's
        decode_s = (last - timed[n_first - 1].time) / share
        if speed and not 1 / APART < n / decode_s / speed < APART:
            self.notes["its own timings say another speed"] = None
        return Run(
            prompt_tokens=n_prompt, prefill_s=first - begun, first_token_s=first - begun,
            decode_s=decode_s, tokens=[],
            steps=n - accepted if drafted else 0, drafted=drafted, accepted=accepted,
            text="".join(chunk.text for chunk in timed), counted=n,
        )  # fmt: skip
