"""`spac serve`: llama.cpp's handlers and loop answer, with the engine's hooks."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spac import Llama, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions, check_loop
from spac.errors import InputError
from spac.model.params import POOLINGS
from spac.report.figures import read
from spac.serve.page import FILES
from tests.cli.conftest import ONE_THREAD
from tests.serve.conftest import KEY, Server, snapshots_on_page, tokens_on_page, wait_until
from tools.models import FAMILIES, write_model

PROMPTS = ("def fibonacci(n):", "class Stack:\n", "import os\n", "x = 1\n", "# A queue\nclass Queue:\n")
N = 24
GREEDY = SamplingConfig(temp=0.0, top_k=0, repeat_penalty=1.0)
EXACT = {
    "state": "off", "threads": 1, "threads_batch": 1, "flash_attn": "off", "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # fmt: skip
OPTIONS = {**EXACT, "device": "simulated", "slots": "25%"}
DRAFTS = {
    "none": {},
    "simple": {"draft": demo.DRAFT, "draft_length": 4},
    "ngram": {"draft_type": "ngram-simple"},
}


def config(**options: object) -> EngineConfig:
    return EngineConfig(
        target=demo.TARGET, ctx=2048, sampling=GREEDY, **{"parallel": 4, **OPTIONS, **options}
    )


def completion(engine: Engine, prompt: str, n: int = N) -> str:
    answer = engine.loop.begin("v1/completions", json.dumps({"prompt": prompt, "max_tokens": n}).encode())
    answer.run()
    assert answer.status == 200, answer.body
    text = json.loads(answer.body)["choices"][0]["text"]
    answer.close()
    return text


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Return the texts that plain llama.cpp without the split generates, one after the other."""
    with Engine(EngineConfig(target=demo.TARGET, device="cpu", sampling=GREEDY, **EXACT)) as engine:
        return {prompt: "".join(engine.generate(prompt, N)) for prompt in PROMPTS}


@pytest.mark.parametrize("draft", DRAFTS)
def test_texts_of_clients_at_once_are_those_of_one_alone(draft: str, alone: dict[str, str]) -> None:
    with Engine(config(**DRAFTS[draft]), serves=LoopOptions("demo")) as engine:
        for _ in range(2):
            with ThreadPoolExecutor(len(PROMPTS)) as pool:
                texts = pool.map(lambda each: completion(engine, each), PROMPTS)
                assert dict(zip(PROMPTS, texts, strict=True)) == alone
        assert engine.experts is not None
        stats = engine.experts.stats
        assert 0 < stats["activations_hit"] < stats["activations"]
        assert engine.events.scheduler_time.ns > 0


def test_the_draft_length_is_the_governors() -> None:
    lengths: list[tuple[int, int]] = []
    with Engine(config(**DRAFTS["simple"]), serves=LoopOptions("demo")) as engine:
        engine.events.after_step.append(lambda step: lengths.append((step.n_drafted, len(step.tokens))))
        engine.fix_draft_length(2)
        completion(engine, PROMPTS[0])
        assert {n for n, _ in lengths} <= {0, 1, 2}
        assert any(n == 2 for n, _ in lengths)
        assert all(1 <= n_tokens <= n + 1 for n, n_tokens in lengths)
        lengths.clear()
        engine.fix_draft_length(0)
        completion(engine, PROMPTS[1])
        assert {n for n, _ in lengths} == {0}


def test_steps_are_counted_and_recorded(tmp_path: Path) -> None:
    with Engine(config(**DRAFTS["simple"]), serves=LoopOptions("demo")) as engine:
        completion(engine, PROMPTS[1])
        before = engine.batch_stats
        with engine.record(tmp_path / "loop.npz"), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda each: completion(engine, each), PROMPTS[:4]))
        after = engine.batch_stats
    recording = read(str(tmp_path / "loop.npz"))
    assert recording.total("steps") == after.steps - before.steps > 0
    assert after.generated_tokens - before.generated_tokens == 4 * N
    assert recording.total("tokens") > 3 * N
    assert after.prefilled_tokens - before.prefilled_tokens > 4
    assert recording.total("drafted") == after.drafted_tokens - before.drafted_tokens > 0
    assert recording.matrix("demand").sum() == recording.total("activations") > 0


def test_slots_change_between_steps(alone: dict[str, str]) -> None:
    with Engine(config(), serves=LoopOptions("demo")) as engine, ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda each: completion(engine, each), PROMPTS)
        for n in (4, 32, 8):
            engine.set_slots(n)
        assert dict(zip(PROMPTS, texts, strict=True)) == alone
        assert engine.experts is not None
        assert engine.experts.slots.n_slots == 8


def test_closing_ends_what_runs() -> None:
    engine = Engine(config(), serves=LoopOptions("demo"))
    answer = engine.loop.begin("v1/completions", b'{"prompt": "x", "max_tokens": 1500, "stream": true}')
    answer.run()
    assert answer.is_stream
    assert answer.next() is not None
    waiting = engine.loop.begin("v1/completions", b'{"prompt": "y", "max_tokens": 1500}')
    thread = threading.Thread(target=waiting.run)
    thread.start()
    engine.close()
    thread.join(10)
    assert not thread.is_alive()
    assert answer.next() is None
    with pytest.raises(InputError, match="closed"):
        engine.loop.begin("health", b"")


def test_bad_use_is_one_line() -> None:
    with (
        Engine(config(), serves=LoopOptions("demo")) as engine,
        pytest.raises(InputError, match="no route nope"),
    ):
        engine.loop.begin("nope", b"")


def test_what_the_loop_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="--deterministic"):
        check_loop(config(deterministic=True))


def test_options_of_the_chat_hold() -> None:
    template = "{{ greeting }}{{ messages[0].content }}{% if not enable_thinking %}N{% endif %}"
    options = LoopOptions(
        "demo", template=lambda _: (template, ""), reasons=False, variables={"greeting": "hello "}
    )
    with Engine(config(), serves=options) as engine:
        body = json.dumps({"messages": [{"role": "user", "content": "you"}]})
        assert json.loads(asked(engine, "apply-template", body))["prompt"] == "hello youN"


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_beside_answers(pooling: str, alone: dict[str, str], tmp_path: Path) -> None:
    def vectors(server: Server) -> np.ndarray:
        made = server.client().embeddings.create(model="demo", input=list(PROMPTS))
        return np.array([each.embedding for each in made.data])

    options = ("--embeddings", "--pooling", pooling, "--device", "simulated", "--slots", "25%")
    server = Server(tmp_path, *options, fixed=(*ONE_THREAD, "--ctx", "2048", "-np", "2"))
    found = vectors(server)
    asked = {"prompt": PROMPTS[0], "max_tokens": N, "temperature": 0}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.ask, "POST", "/v1/completions", asked) for _ in range(2)]
        np.testing.assert_allclose(vectors(server), found, atol=1e-6)
        for each in answers:
            assert json.loads(each.result()[1])["choices"][0]["text"] == alone[PROMPTS[0]]
    assert server.stop() == 0
    settings = {"device": "cpu", "n_threads": 1, "n_ctx": 256, "verbose": False}
    llama = Llama(str(demo.TARGET), embedding=True, pooling_type=POOLINGS[pooling], **settings)
    expected = llama.embed(list(PROMPTS), normalize=True)
    llama.close()
    assert ((found * np.array(expected)).sum(axis=1) > 0.999).all(), "the directions of unit vectors"


def test_other_servers_make_no_embeddings(server: Server) -> None:
    status, body = server.ask("POST", "/v1/embeddings", {"input": "x"})
    assert (status, "Start it with `--embeddings`" in json.loads(body)["error"]["message"]) == (501, True)


def asked(engine: Engine, route: str, body: str) -> bytes:
    answer = engine.loop.begin(route, body.encode())
    answer.run()
    said = answer.body
    answer.close()
    return said


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "chat_parser": "[" * 60_000},
        {"prompt": "x", "chat_format": 99},
        {"prompt": "x", "grammar": "root ::= " + "(" * 60_000},
        {"prompt": "x", "json_schema": {"type": "array", "minItems": 5, "maxItems": 2}},
        {"prompt": [[-7]]},
        {"prompt": "x", "grammar_lazy": True, "grammar_triggers": [{"type": 9, "value": "("}]},
        {"prompt": "x", "n": 100},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_request_ends_itself_alone(one: Engine, body: dict) -> None:
    assert "error" in json.loads(asked(one, "completion", json.dumps({"n_predict": 2, **body})))
    assert json.loads(asked(one, "completion", '{"prompt": "x", "n_predict": 2}'))["tokens_predicted"] == 2


def test_what_would_take_all_memory_or_all_of_a_stack_is_answered(one: Engine) -> None:
    for body in (
        {
            "repeat_last_n": 2**31 - 1,
            "repeat_penalty": 1.1,
            "dry_penalty_last_n": 2**31 - 1,
            "dry_multiplier": 1,
        },
        {"backend_sampling": True},
        {"generation_prompt": "[" * 60_000},
    ):
        answer = json.loads(asked(one, "completion", json.dumps({"prompt": "x", "n_predict": 2, **body})))
        assert answer["tokens_predicted"] == 2, answer


@pytest.fixture(scope="module")
def one() -> Iterator[Engine]:
    with Engine(config(parallel=1), serves=LoopOptions("demo")) as engine:
        yield engine


def test_steps_larger_than_a_batch_are_refused(tmp_path: Path) -> None:
    options = {"batch": 16, "ubatch": 16, "draft_type": "ngram-simple", "draft_max": 4}
    with pytest.raises(InputError, match="a step has up to 20 tokens, and a batch 16"):
        Engine(config(**options), serves=LoopOptions("demo"))
    path = write_model(tmp_path / "states.gguf", "qwen3next", FAMILIES["qwen3next"].default)
    options = {**EXACT, "device": "cpu", "parallel": 1, **options, "batch": 64, "ubatch": 5}
    with pytest.raises(InputError, match="--ubatch must be more than 5"):
        Engine(EngineConfig(target=path, **options), serves=LoopOptions("states"))


def test_a_window_that_comes_back_has_all_of_its_tokens(tmp_path: Path) -> None:
    """With checkpoints, the last prompt went back to one that was made behind another one."""
    path = tmp_path / "window.gguf"
    write_model(path, "gpt-oss", replace(FAMILIES["gpt-oss"].default, n_swa=16))
    options = {**EXACT, "device": "cpu", "parallel": 1, "ctx": 256, "swa_full": True, "sampling": GREEDY}
    text, other = "o8*<GmJ(?Yme~1s%U:3^=U8.gI`_yH4", ",,kOXYc.N.FxT&S,gz}[rC-PJ^~:q-Aj"
    with Engine(EngineConfig(target=path, **options), serves=LoopOptions("window")) as engine:
        completion(engine, text, 2)
        completion(engine, other[::-1], 2)
        begun = text[:29] + completion(engine, text[:29], 12)
        completion(engine, other, 1)
        said = probabilities(engine, begun[:38] + "urm")
    with Engine(EngineConfig(target=path, **options), serves=LoopOptions("window")) as engine:
        assert said == pytest.approx(probabilities(engine, begun[:38] + "urm"), abs=1e-4)


def probabilities(engine: Engine, prompt: str) -> list[float]:
    """Return the log probabilities of the most probable tokens that follow a prompt."""
    body = {"prompt": prompt, "max_tokens": 5, "logprobs": 3}
    answer = engine.loop.begin("v1/completions", json.dumps(body).encode())
    answer.run()
    places = json.loads(answer.body)["choices"][0]["logprobs"]["content"]
    answer.close()
    return [top["logprob"] for place in places for top in place["top_logprobs"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("loop")
    fixed = (*ONE_THREAD, "--parallel", "2", "--ctx", "2048", "--queue", "1",
             "--strict-model")  # fmt: skip
    server = Server(folder, "--slot-save-path", str(folder), fixed=fixed)
    yield server
    assert server.stop() == 0


def test_clients_of_openai_and_anthropic(server: Server) -> None:
    text = server.client().completions.create(model="demo", prompt=PROMPTS[0], max_tokens=8, temperature=0)
    parts = server.client().completions.create(
        model="demo", prompt=PROMPTS[0], max_tokens=8, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in parts) == text.choices[0].text
    messages = [{"role": "user", "content": "hi"}]
    chat = server.client().chat.completions.create(model="demo", messages=messages, max_tokens=4)
    assert chat.usage.completion_tokens == 4
    said = server.anthropic().messages.create(model="demo", messages=messages, max_tokens=4)
    assert said.stop_reason == "max_tokens"


def test_the_front_refuses(server: Server) -> None:
    assert server.ask("POST", "/v1/completions", {"prompt": "x"}, key="wrong")[0] == 401
    assert server.ask("POST", "/nope", {})[0] == 404
    assert server.ask("GET", "/v1/completions")[0] == 405
    status, body = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": "many"})
    assert status == 400, body
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
        asked = {"model": "gpt-4", "prompt": "x", "messages": [], "max_tokens": 1}
        status, body = server.ask("POST", path, asked)
        assert status == 404, body
        assert "the model 'gpt-4' is not served here: demo is" in json.loads(body)["error"]["message"]


def test_the_page_is_there(server: Server) -> None:
    for path in FILES:
        connection = server.connection()
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        assert "default-src 'none'" in response.headers["content-security-policy"]
        connection.close()
    assert b"<pre>*so*</pre>" in server.ask("POST", "/page/markdown", "*so*")[1], "a model without a template"
    assert server.ask("POST", "/page/markdown", b"\xff")[0] == 400
    assert server.ask("GET", "/page/events", key="wrong")[0] == 401
    assert server.ask("GET", "/page/nope")[0] == 404
    assert json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"] == "demo"
    assert json.loads(server.ask("GET", "/props")[1])["modalities"]["vision"] is False


def test_the_page_sees_what_the_engine_does(server: Server) -> None:
    asked = {"prompt": "d", "max_tokens": 60, "ignore_eos": True}
    tokens = tokens_on_page(server, lambda: server.ask("POST", "/v1/completions", asked))
    assert 59 <= tokens <= 60, "the first one may come with the prompt"


def test_the_page_shows_each_answer(server: Server) -> None:
    def ask() -> None:
        asked = {"prompt": PROMPTS[0], "max_tokens": 400, "ignore_eos": True, "n": 2}
        assert server.ask("POST", "/v1/completions", asked)[0] == 200

    tables = [each["sequences"] for each in snapshots_on_page(server, ask) if each["running"] == 2]
    assert tables
    for table in tables:
        assert len({one["id"] for one in table}) == len(table) == 2
        assert all(one["prompt"] > 3 and one["accepted"] <= one["drafted"] for one in table)
    before, after = tables[0], tables[-1]
    assert all(0 <= a["tokens"] <= b["tokens"] <= 400 for a, b in zip(before, after, strict=True))
    assert all(one["seconds"] > 0 and one["pending"] == 0 for one in after)


def test_refusals_have_the_form_of_llama_server(server: Server) -> None:
    error = json.loads(server.ask("POST", "/v1/completions", {"prompt": "x"}, key="wrong")[1])["error"]
    assert (error["code"], error["type"]) == (401, "authentication_error")
    assert json.loads(server.ask("POST", "/nope", {})[1])["error"]["type"] == "not_found_error"
    for path in ("/props", "/rerank", "/v1/reranking", "/embeddings", "/v1/embeddings"):
        status, body = server.ask("POST", path, {})
        assert (status, json.loads(body)["error"]["type"]) == (501, "not_supported_error"), path


def test_metrics_are_those_of_both(server: Server) -> None:
    status, text = server.ask("GET", "/metrics")
    assert status == 200
    assert b"spac_requests_total" in text
    assert b"llamacpp:n_decode_total" in text


def test_pages_of_other_origins_may_ask_with_the_key(server: Server) -> None:
    connection = server.connection()
    fields = {"origin": "http://page.example", "access-control-request-method": "POST"}
    fields["access-control-request-headers"] = "authorization"
    connection.request("OPTIONS", "/v1/completions", headers=fields)
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    assert response.getheader("access-control-allow-origin") == "http://page.example"
    assert response.getheader("access-control-allow-headers") == "authorization"
    connection.close()


def test_a_client_that_leaves_frees_its_slot(server: Server) -> None:
    connection = server.connection()
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "stream": True, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"authorization": f"Bearer {KEY}"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data:")
    connection.close()
    response.close()
    wait_until(lambda: not any(each["is_processing"] for each in json.loads(server.ask("GET", "/slots")[1])))


def test_metrics_count_the_steps(server: Server) -> None:
    def total(name: str) -> float:
        lines = server.ask("GET", "/metrics")[1].decode().splitlines()
        return sum(float(each.split()[-1]) for each in lines if each.startswith(name))

    names = ("spac_steps_total", 'spac_tokens_total{kind="generated"}')
    before = [total(name) for name in names]
    server.ask("POST", "/v1/completions", {"prompt": PROMPTS[2], "max_tokens": 9, "ignore_eos": True})
    n_steps, n_tokens = (total(name) - was for name, was in zip(names, before, strict=True))
    assert n_tokens == 9
    assert 1 <= n_steps <= 8, "drafts make fewer"


def test_the_memory_is_changed_while_it_serves(server: Server) -> None:
    assert json.loads(server.ask("POST", "/admin/vram", {"slots": 8})[1])["slots"] == 8


def test_slots_are_saved_and_restored(server: Server) -> None:
    server.ask("POST", "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 4, "id_slot": 1})
    status, saved = server.ask("POST", "/slots/1?action=save", {"filename": "one.bin"})
    assert status == 200, saved
    assert server.ask("POST", "/slots/1?action=erase", {})[0] == 200
    status, restored = server.ask("POST", "/slots/1?action=restore", {"filename": "one.bin"})
    assert status == 200, restored
    assert json.loads(saved)["n_saved"] == json.loads(restored)["n_restored"]


def test_a_signal_ends_it_while_an_answer_runs(tmp_path: Path) -> None:
    server = Server(tmp_path, fixed=(*ONE_THREAD, "--parallel", "2", "--ctx", "2048"))
    connection = server.connection()
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "stream": True, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"authorization": f"Bearer {KEY}"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data:")
    assert server.stop(signal.SIGINT) == 0
    response.close()
    connection.close()
