"""`spac serve`: llama.cpp's handlers and loop answer, with the engine's hooks."""

from __future__ import annotations

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from spac import Llama, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions, check_loop
from spac.errors import InputError
from spac.model.params import POOLINGS
from spac.report.figures import read
from tests import exact
from tests.cli.conftest import ONE_THREAD
from tests.exact import PROMPTS
from tests.serve.conftest import Server, snapshots_on_page
from tools.models import FAMILIES, write_model

N = 24
GREEDY = SamplingConfig(temp=0.0, top_k=0, repeat_penalty=1.0)
EXACT = {"state": "off", "threads": 1, "threads_batch": 1, **exact.CACHE}
OPTIONS = {**EXACT, "device": "simulated", "slots": "25%"}
DRAFTS = {
    "none": {},
    "simple": {"draft": demo.DRAFT, "draft_length": 4},
    "ngram": {"draft_type": "ngram-simple"},
}


def config(**options: object) -> EngineConfig:
    return EngineConfig(
        target=exact.target(), ctx=2048, sampling=GREEDY, **{"parallel": 4, **OPTIONS, **options}
    )


def asked(engine: Engine, route: str, body: dict) -> dict:
    answer = engine.loop.begin(route, json.dumps(body).encode())
    answer.run()
    said = json.loads(answer.body)
    answer.close()
    return said


def completion(engine: Engine, prompt: str, n: int = N) -> str:
    return asked(engine, "v1/completions", {"prompt": prompt, "max_tokens": n})["choices"][0]["text"]


@pytest.fixture(scope="module")
def alone():
    """Return the texts that plain llama.cpp without the split generates, one after the other."""
    with Engine(EngineConfig(target=exact.target(), device="cpu", sampling=GREEDY, **EXACT)) as engine:
        return {prompt: "".join(engine.generate(prompt, N)) for prompt in PROMPTS}


@pytest.mark.parametrize("draft", DRAFTS)
def test_texts_of_clients_at_once_are_those_of_one_alone(draft, alone):
    with Engine(config(**DRAFTS[draft]), serves=LoopOptions("demo")) as engine:
        for _ in range(2):
            with ThreadPoolExecutor(len(PROMPTS)) as pool:
                texts = pool.map(lambda each: completion(engine, each), PROMPTS)
                assert dict(zip(PROMPTS, texts, strict=True)) == alone
        stats = engine.experts.stats
        assert 0 < stats["activations_hit"] < stats["activations"]
        assert engine.events.scheduler_time.ns > 0


def test_the_draft_length_is_the_governors():
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


def test_steps_are_counted_and_recorded(tmp_path):
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


def test_slots_change_between_steps(alone):
    with Engine(config(), serves=LoopOptions("demo")) as engine, ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda each: completion(engine, each), PROMPTS)
        for n in (4, 32, 8):
            engine.set_slots(n)
        assert dict(zip(PROMPTS, texts, strict=True)) == alone
        assert engine.experts.slots.n_slots == 8


def test_closing_ends_what_runs():
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


def test_bad_use_is_one_line(one):
    with pytest.raises(InputError, match="no route nope"):
        one.loop.begin("nope", b"")
    with pytest.raises(InputError, match="--deterministic"):
        check_loop(config(deterministic=True))


def test_options_of_the_chat_hold():
    template = "{{ greeting }}{{ messages[0].content }}{% if not enable_thinking %}N{% endif %}"
    options = LoopOptions(
        "demo", template=lambda _: (template, ""), reasons=False, variables={"greeting": "hello "}
    )
    with Engine(config(), serves=options) as engine:
        body = {"messages": [{"role": "user", "content": "you"}]}
        assert asked(engine, "apply-template", body)["prompt"] == "hello youN"


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_beside_answers(pooling, alone, tmp_path):
    options = ["--embeddings", "--pooling", pooling, "--device", "simulated", "--slots", "25%"]
    options += ["--target", str(exact.target()), "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    with Server(tmp_path, *options, fixed=(*ONE_THREAD, "--ctx", "2048", "-np", "2")) as server:

        def vectors() -> np.ndarray:
            made = server.post("/v1/embeddings", input=list(PROMPTS))["data"]
            return np.array([each["embedding"] for each in made])

        found = vectors()
        asked = {"prompt": PROMPTS[0], "max_tokens": N, "temperature": 0}
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(server.post, "/v1/completions", asked) for _ in range(2)]
            np.testing.assert_allclose(vectors(), found, atol=1e-6)
            assert {each.result()["choices"][0]["text"] for each in answers} == {alone[PROMPTS[0]]}
    settings = {"device": "cpu", "n_threads": 1, "n_ctx": 256, "verbose": False}
    llama = Llama(str(exact.target()), embedding=True, pooling_type=POOLINGS[pooling], **settings)
    expected = llama.embed(list(PROMPTS), normalize=True)
    llama.close()
    assert ((found * np.array(expected)).sum(axis=1) > 0.999).all(), "the directions of unit vectors"


@pytest.mark.parametrize(
    "body",
    [
        {"chat_parser": "[" * 60_000}, {"chat_format": 99}, {"grammar": "root ::= " + "(" * 60_000},
        {"json_schema": {"type": "array", "minItems": 5, "maxItems": 2}}, {"prompt": [[-7]]},
        {"grammar_lazy": True, "grammar_triggers": [{"type": 9, "value": "("}]}, {"n": 100},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_request_ends_itself_alone(one, body):
    assert "error" in asked(one, "completion", {"prompt": "x", "n_predict": 2, **body})
    assert asked(one, "completion", {"prompt": "x", "n_predict": 2})["tokens_predicted"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1.1},
        {"dry_penalty_last_n": 2**31 - 1, "dry_multiplier": 1},
        {"backend_sampling": True}, {"generation_prompt": "[" * 60_000},
    ],
    ids=str,
)  # fmt: skip
def test_what_would_take_all_memory_or_all_of_a_stack_is_answered(one, body):
    assert asked(one, "completion", {"prompt": "x", "n_predict": 2, **body})["tokens_predicted"] == 2


@pytest.fixture(scope="module")
def one():
    with Engine(config(parallel=1), serves=LoopOptions("demo")) as engine:
        yield engine


def test_steps_larger_than_a_batch_are_refused(tmp_path):
    options = {"batch": 16, "ubatch": 16, "draft_type": "ngram-simple", "draft_max": 4}
    with pytest.raises(InputError, match="a step has up to 20 tokens, and a batch 16"):
        Engine(config(**options), serves=LoopOptions("demo"))
    path = write_model(tmp_path / "states.gguf", "qwen3next", FAMILIES["qwen3next"].default)
    options = {**EXACT, "device": "cpu", "parallel": 1, **options, "batch": 64, "ubatch": 5}
    with pytest.raises(InputError, match="--ubatch must be more than 5"):
        Engine(EngineConfig(target=path, **options), serves=LoopOptions("states"))


def test_a_window_that_comes_back_has_all_of_its_tokens(tmp_path):
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
    places = asked(engine, "v1/completions", body)["choices"][0]["logprobs"]["content"]
    return [top["logprob"] for place in places for top in place["top_logprobs"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    fixed = (*ONE_THREAD, "--parallel", "2", "--ctx", "2048", "--queue", "1", "--strict-model")
    with Server(tmp_path_factory.mktemp("loop"), fixed=fixed) as server:
        yield server


def test_the_front_refuses(server):
    """Refusals have the form of llama-server's."""
    text = {"prompt": "x", "messages": [], "max_tokens": 1}
    error = json.loads(server.ask("POST", "/v1/completions", text, key="wrong")[1])["error"]
    assert (error["code"], error["type"]) == (401, "authentication_error")
    assert server.post("/nope", status=404)["error"]["type"] == "not_found_error"
    for path in ("/props", "/rerank", "/v1/reranking", "/embeddings", "/v1/embeddings"):
        error = server.post(path, status=501, input="x")["error"]
        assert error["type"] == "not_supported_error"
        assert "embeddings" not in path or "Start it with `--embeddings`" in error["message"]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
        message = server.refusal(path, {"model": "gpt-4", **text}, 404)
        assert "the model 'gpt-4' is not served here: demo is" in message


def test_the_page_shows_each_answer(server):
    asked = {"prompt": PROMPTS[0], "max_tokens": 400, "ignore_eos": True, "n": 2}
    seen = snapshots_on_page(server, lambda: server.post("/v1/completions", asked))
    tables = [each["sequences"] for each in seen if each["running"] == 2]
    assert tables
    for table in tables:
        assert len({one["id"] for one in table}) == len(table) == 2
        assert all(one["prompt"] > 3 and one["accepted"] <= one["drafted"] for one in table)
    before, after = tables[0], tables[-1]
    assert all(0 <= a["tokens"] <= b["tokens"] <= 400 for a, b in zip(before, after, strict=True))
    assert all(one["seconds"] > 0 and one["pending"] == 0 for one in after)


def test_pages_of_other_origins_may_ask_with_the_key(server):
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


def test_a_signal_ends_it_while_an_answer_runs(tmp_path):
    server = Server(tmp_path, fixed=(*ONE_THREAD, "--parallel", "2", "--ctx", "2048"))
    asked = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}
    connection, response = server.stream("/v1/completions", asked)
    assert server.stop(signal.SIGINT) == 0
    response.close()
    connection.close()
