"""All doors: an engine, a `Llama`, a server on each loop, with one generation at a time and with four."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spac import Llama
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import SpacError
from tests.conversations.door import END, MARKER, NO_NUMBERS, Answer, Request, Setup, Tokens
from tests.conversations.setups import CONTEXT, IN_THE_LOOP, ONE_ALONE, SETUPS
from tests.serve.conftest import KEY, Server

TOP = 3
"""The number of the most probable tokens at each place whose log probabilities are compared."""
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "repeat_penalty": 1.0}
ONE, SEVERAL = 1, 4
DRAFTS = {"draft", "draft_type", "draft_length", "cache_type_k_draft", "cache_type_v_draft"}
"""The options of drafts."""


def of_completion(choice: Any) -> Answer:
    """Return the answer of a completion's `choice`, in OpenAI's format."""
    tops = (choice.get("logprobs") or {}).get("top_logprobs") or ()
    top = tuple(tuple(sorted(each.values(), reverse=True)[:TOP]) for each in tops)
    return Answer(choice["text"], choice["finish_reason"], top)


def finite(answer: Callable[[], Answer]) -> Answer:
    """Return an answer, also if it ended because its logits are no finite numbers."""
    try:
        return answer()
    except SpacError as error:
        if "no finite numbers" not in str(error):
            raise
        return Answer("", NO_NUMBERS)


def of_server(choice: Any) -> Answer:
    """Return the answer of a completion's `choice`, as llama-server forms it.

    It lists the token that ends a text too, and the tokens of a stop string.
    """
    places = (choice.get("logprobs") or {}).get("content") or ()
    top = tuple(tuple(each["logprob"] for each in place["top_logprobs"]) for place in places)
    return Answer(choice["text"], choice["finish_reason"], top[: len(choice["text"])])


class EngineDoor:
    """`Engine.generate`. With one generation at a time, another one ends it."""

    ways = ("text",)
    actions: Sequence[str] = ()
    shares_overflows = False

    def __init__(self, setup: Setup, parallel: int) -> None:
        sampling = SamplingConfig(temp=0.0, top_k=0, repeat_penalty=1.0)
        options = {**setup.options, "parallel": parallel, "ctx": parallel * CONTEXT}
        self._engine = Engine(EngineConfig(target=setup.target, sampling=sampling, **options))
        self.n_clients = parallel
        self.shares_overflows = parallel > 1
        self.actions = ("change slots",) if self._engine.experts is not None else ()

    def answer(self, request: Request) -> Answer:
        made = self._generation(request)
        return finite(lambda: Answer("".join(made), made.reason))

    def leave(self, request: Request, n_parts: int) -> str:
        made = self._generation(request)
        return "".join(piece for piece, _ in zip(made, range(n_parts), strict=False))

    def _generation(self, request: Request) -> Any:
        prompt: Any = list(request.tokens)
        if request.sees:
            prompt = self._engine.image_prompt(request.text, request.images)
        return self._engine.generate(prompt, request.n, stop=request.stop)

    def go_on(self, more: Tokens, n: int) -> tuple[Request, Answer]:
        raise NotImplementedError

    def act(self, action: str, number: int) -> None:
        self._engine.set_slots((2, 4, 8)[number % 3])

    def close(self) -> None:
        self._engine.close()


class LlamaDoor:
    """`spac.Llama`, with the functions of llama_cpp for all that is unusual; `plain` leaves a draft out."""

    shares_overflows = False

    def __init__(self, setup: Setup, parallel: int, *, plain: bool = False) -> None:
        options = {name: value for name, value in setup.options.items() if not (plain and name in DRAFTS)}
        for name in ("threads", "threads_batch", "batch", "ubatch"):
            options[f"n_{name}"] = options.pop(name)
        for name in ("type_k", "type_v"):
            assert options.pop(f"cache_{name}") == "f32"
            options[name] = 0
        if "flash_attn" in options:
            options["flash_attn"] = options["flash_attn"] == "on"
        if parallel > 1:
            options["parallel"] = parallel
        self._llm = Llama(str(setup.target), n_ctx=parallel * CONTEXT, verbose=False, **options)
        self._saved: dict[int, Any] = {}
        self.n_clients = parallel
        alone = parallel == 1
        self.shares_overflows = not alone
        self.ways = ("text", "logprobs", "processor", "eval") if alone else ("text", "logprobs")
        self.actions = ("reset", "save", "restore") if alone else ()

    def answer(self, request: Request) -> Answer:
        if request.way == "eval":
            self._llm.reset()
            return self._evaluated(request.tokens, request.n)
        return finite(lambda: of_completion(self._completion(request)["choices"][0]))

    def leave(self, request: Request, n_parts: int) -> str:
        with contextlib.closing(self._completion(request, stream=True)) as parts:
            texts = (part["choices"][0]["text"] for part in parts)
            return "".join(text for text, _ in zip(texts, range(n_parts), strict=False))

    def _completion(self, request: Request, **more: Any) -> Any:
        prompt = list(request.tokens)
        if request.sees:
            prompt = self._llm.see(request.text.encode(), request.images)
        more |= {"max_tokens": request.n, "stop": list(request.stop), **GREEDY}
        if request.way != "text":
            more["logprobs"] = TOP
        if request.way == "processor":
            more["logits_processor"] = [lambda _ids, scores: scores]
        return self._llm.create_completion(prompt, **more)

    def go_on(self, more: Tokens, n: int) -> tuple[Request, Answer]:
        held = tuple(self._llm._input_ids.tolist())
        if min(held, default=0) < 0 or len(held) + len(more) + n > CONTEXT - 1:
            self._llm.reset()
            held = ()
        return Request((*held, *more), n, way="eval"), self._evaluated(more, n)

    def _evaluated(self, tokens: Tokens, n: int) -> Answer:
        made, top = b"", []
        self._llm.eval(tokens)
        for _ in range(n):
            logits = np.array(self._llm._ctx.get_logits_ith(-1)[: self._llm.n_vocab()], np.float64)
            with np.errstate(invalid="ignore"):  # those of an overflow are no numbers
                best = np.sort(logits)[: -TOP - 1 : -1] - np.logaddexp.reduce(logits)
            top.append(tuple(best.tolist()))
            token = self._llm.sample(temp=0.0, top_k=0)
            if token == END:
                return Answer(made.decode("latin-1"), "stop", tuple(top))
            made += bytes([token])
            self._llm.eval([token])
        return Answer(made.decode("latin-1"), "length", tuple(top))

    def act(self, action: str, number: int) -> None:
        if action == "reset":
            self._llm.reset()
        elif action == "save":
            self._saved[number % 2] = self._llm.save_state()
        elif number % 2 in self._saved:
            self._llm.load_state(self._saved[number % 2])

    def close(self) -> None:
        self._llm.close()


class ServerDoor:
    """`spac serve`, in a process of its own."""

    ways: Sequence[str] = ("text", "logprobs")
    actions: Sequence[str] = ("save", "restore", "erase")
    shares_overflows = True

    def __init__(self, setup: Setup, parallel: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.n_clients = self._places = parallel
        words = ["--target", str(setup.target), "--ctx", str(parallel * CONTEXT), "--parallel", str(parallel)]
        for name, value in setup.options.items():
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        words += ["--slot-save-path", self._folder.name, "--no-page", "--temp", "0", "--top-k", "0"]
        self._server = Server(Path(self._folder.name), *words, fixed=())
        if "slots" in setup.options:
            self.actions = (*self.actions, "change slots")
        self._marker = json.loads(self._server.ask("GET", "/props")[1])["media_marker"] if setup.sees else ""

    def answer(self, request: Request) -> Answer:
        status, body = self._server.ask("POST", "/v1/completions", self._asked(request))
        if status != 200:
            if "no finite numbers" in body.decode():
                return Answer("", NO_NUMBERS)
            raise SpacError(f"{status}: {body.decode()}")
        return of_server(json.loads(body)["choices"][0])

    def leave(self, request: Request, n_parts: int) -> str:
        body = self._asked(request, stream=True)
        connection = self._server.connection()
        try:
            fields = {"authorization": f"Bearer {KEY}"}
            connection.request("POST", "/v1/completions", json.dumps(body), fields)
            texts = self._streamed(connection.getresponse())
            return "".join(text for text, _ in zip(texts, range(n_parts), strict=False))
        finally:
            connection.close()

    @staticmethod
    def _streamed(response: http.client.HTTPResponse) -> Iterator[str]:
        for line in response:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:]).get("choices", ()):  # An error has none.
                    yield choice["text"]

    def _asked(self, request: Request, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"max_tokens": request.n, "stop": list(request.stop), **more}
        if request.way == "logprobs":
            body["logprobs"] = TOP
        if not request.sees:
            return {**body, "prompt": list(request.tokens)}
        data = [base64.b64encode(image).decode() for image in request.images]
        text = request.text.replace(MARKER, self._marker)
        return {**body, "prompt": {"prompt_string": text, "multimodal_data": data}}

    def go_on(self, more: Tokens, n: int) -> tuple[Request, Answer]:
        raise NotImplementedError

    def act(self, action: str, number: int) -> None:
        if action == "change slots":
            status, body = self._server.ask("POST", "/admin/vram", {"slots": (2, 4, 8)[number % 3]})
            if status != 200:
                raise SpacError(f"{action}: {status}: {body.decode()}")
            return
        name = {"filename": f"{number // self._places % 2}"} if action != "erase" else {}
        status, body = self._server.ask("POST", f"/slots/{number % self._places}?action={action}", name)
        # A slot may be empty or have images, a file or a slot may not exist (recurrent models have one),
        # and a client that left may be there still.
        if status not in (200, 400, 404, 503):
            raise SpacError(f"{action}: {status}: {body.decode()}")

    def close(self) -> None:
        try:
            assert self._server.stop() == 0
        finally:
            self._folder.cleanup()


DOORS = {
    "engine": partial(EngineDoor, parallel=ONE), "engine-4": partial(EngineDoor, parallel=SEVERAL),
    "llama": partial(LlamaDoor, parallel=ONE), "llama-4": partial(LlamaDoor, parallel=SEVERAL),
    "serve": partial(ServerDoor, parallel=ONE), "serve-4": partial(ServerDoor, parallel=SEVERAL),
}  # fmt: skip
FRESH = DOORS | {
    "serve": partial(LlamaDoor, parallel=ONE, plain=True),
    "serve-4": partial(LlamaDoor, parallel=ONE, plain=True),
}
"""The doors that are begun anew. In place of a server, a `Llama` in this process loads faster.

llama.cpp's loop has drafts that spac's own does not have. A draft changes no answer, so none is compared.
"""


def setups_of(door: str) -> list[str]:
    """Return the names of the setups that a door can have."""
    if door.startswith("serve"):
        return list(SETUPS)
    refused = {*IN_THE_LOOP, *(ONE_ALONE if door.endswith("-4") else ())}
    return [name for name in SETUPS if name not in refused]
