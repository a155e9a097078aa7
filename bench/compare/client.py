"""Ask a server for OpenAI's completions, and measure the times of its streamed answers on the client's
side."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bench.compare.job import TOOK_TOO_LONG, Run
from bench.compare.server import PeerError, Server

RETRY_S = 0.1
BURST_S = 0.002  # seconds: chunks that come closer than this to the first one are of the same step
APART = 1.25  # ratio from which on a server's own speed counts as different from the client's
REFUSED = (400, 422, 500)  # statuses of servers that do not know a field or a form of the prompt


class _RefusedError(PeerError):
    """A refusal after which another form of the request may succeed."""


@dataclass(frozen=True)
class _Chunk:
    time: float
    text: str
    usage: dict[str, Any]
    timings: dict[str, Any]  # llama.cpp's
    reason: str | None


class Client:
    """A client of a server that has been started. All methods raise PeerError, with one line."""

    def __init__(self, server: Server, port: int, deadline: float) -> None:
        """Give up at the time.monotonic() of `deadline`."""
        self.notes: dict[str, None] = {}  # how prompts were sent and tokens counted, in order
        self._server, self._port, self._deadline = server, port, deadline
        self._begun = time.monotonic()
        self._form = 0
        self._model = ""

    def wait(self) -> None:
        """Wait until the server answers, at /health or, where it has no such page, at /v1/models."""
        while True:
            self._server.check()
            try:
                status, _ = self._get("/health")
                if status == 404:
                    status, _ = self._get("/v1/models")
                if status == 200:
                    break
                said = f"status {status} at /health"
            except (OSError, http.client.HTTPException):
                said = f"no answer at port {self._port}"
            if time.monotonic() + RETRY_S > self._deadline:
                raise self._too_late(said)
            time.sleep(RETRY_S)
        self._model = self._model_name()

    def complete(self, prompt: list[int], text: str, n_predict: int) -> Run:
        """Return the greedy continuation of a prompt. The prompt is sent as tokens, or as text where tokens
        are refused."""
        with self._explained():
            while True:
                try:
                    return self._complete(prompt, text, n_predict)
                except _RefusedError:
                    if self._form == len(_FORMS) - 1:
                        raise
                    self._form += 1

    def _complete(self, prompt: list[int], text: str, n_predict: int) -> Run:
        as_tokens, extended, note = _FORMS[self._form]
        body: dict[str, Any] = {
            "model": self._model, "prompt": prompt if as_tokens else text, "max_tokens": n_predict,
            "temperature": 0, "stream": True,
        }  # fmt: skip
        if extended:  # llama.cpp's fields: the text never ends early, and every prompt is read
            body |= {"stream_options": {"include_usage": True}, "n_predict": n_predict, "ignore_eos": True}
            body |= {"cache_prompt": False, "top_k": 1, "seed": 1}
        begun = time.perf_counter()
        chunks = list(self._stream(body))
        self.notes[note] = None
        return self._run(chunks, begun, len(prompt), n_predict)

    def _run(self, chunks: list[_Chunk], begun: float, n_prompt: int, n_predict: int) -> Run:
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
        n = self._count(timed, usage, timings, chunks[-1].reason, n_predict)
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

    def _count(
        self, timed: list[_Chunk], usage: dict[str, Any], timings: dict[str, Any], reason: str | None,
        n_predict: int,
    ) -> int:  # fmt: skip
        """Return the number of tokens, from the most reliable source."""
        if usage.get("completion_tokens"):
            n, how = int(usage["completion_tokens"]), "its usage"
        elif timings.get("predicted_n"):
            n, how = int(timings["predicted_n"]), "its timings"
        elif reason == "length":
            n, how = n_predict, "the limit, which it reached"
        else:
            n, how = len(timed), "its chunks"
        self.notes[f"tokens counted by {how}"] = None
        if n != n_predict:
            self.notes[f"{n} tokens in place of {n_predict}"] = None
        return n

    def _stream(self, body: dict[str, Any]) -> Iterator[_Chunk]:
        connection = self._connection()
        try:
            connection.connect()
            wire = connection.sock
            words = json.dumps(body)
            connection.request("POST", "/v1/completions", words, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                said = f"it answered with status {answer.status}: {_message(answer.read())}"
                raise (_RefusedError if answer.status in REFUSED else PeerError)(said)
            reason = None
            while line := answer.readline():
                with suppress(OSError):  # otherwise a server that collects small packets waits for this side
                    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                if time.monotonic() > self._deadline:
                    raise self._too_late("it is still answering")
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise PeerError(f"it answered with an error: {_message(data)}")
                choice = (event.get("choices") or [{}])[0]
                reason = choice.get("finish_reason") or reason
                yield _Chunk(
                    time.perf_counter(), choice.get("text") or "", event.get("usage") or {},
                    event.get("timings") or {}, reason,
                )  # fmt: skip
            if reason is None:
                raise ConnectionResetError
        finally:
            connection.close()

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _model_name(self) -> str:
        """Return the name that the server gives its model. Some servers refuse other names."""
        with self._explained():
            status, data = self._get("/v1/models")
        try:
            return str(json.loads(data)["data"][0]["id"]) if status == 200 else "model"
        except (ValueError, LookupError, TypeError):
            return "model"

    def _connection(self) -> http.client.HTTPConnection:
        left = max(RETRY_S, self._deadline - time.monotonic())
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=left)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors on the way into PeerError."""
        try:
            yield
        except TimeoutError:
            raise self._too_late("it does not answer") from None
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"the connection broke: {type(error).__name__}") from None
        except (ValueError, AttributeError, TypeError):
            raise PeerError("its answer is no stream of completions") from None

    def _too_late(self, said: str) -> PeerError:
        allowed = self._deadline - self._begun
        return PeerError(
            f"{TOOK_TOO_LONG} {allowed:.0f} s: {said}; its last lines: {self._server.last_lines}"
        )


_FORMS = (  # as tokens, with llama.cpp's fields, and the page's words for it
    (True, True, "prompts sent as tokens"),
    (False, True, "prompts sent as text"),
    (False, False, "prompts sent as text, with OpenAI's fields alone"),
)


def _message(data: bytes) -> str:
    """Return an error's message in one line."""
    text = data.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        pass
    return " ".join(text.split())[:200]
