"""The server through OpenAI's own client: answers, streams, many clients at once, clients that leave."""

from __future__ import annotations

import json

import openai
import pytest

from tests.serve.conftest import KEY, QUEUE, Long, in_thread, wait_until

PROMPTS = ["def add(", "class Tree:\n", "import os\n", "for line in ", "while True:\n", "x = [", "try:\n"]
GREEDY = {"model": "demo", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def alone(client):
    """What every prompt's request gives when nobody else is there."""
    return {prompt: complete(client, prompt) for prompt in PROMPTS}


def complete(client, prompt, **more):
    return client.completions.create(prompt=prompt, **GREEDY, **more).choices[0].text


def streamed(client, prompt):
    chunks = client.completions.create(prompt=prompt, **GREEDY, stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks)


def test_a_completion_says_what_it_is(client):
    done = client.completions.create(prompt="def add(", **GREEDY)
    assert done.model == "demo"
    assert done.usage.completion_tokens == 24
    assert done.choices[0].finish_reason == "length"


def test_the_text_is_that_of_the_engine(client):
    from spac import demo
    from spac.config import EngineConfig, SamplingConfig
    from spac.engine import Engine

    config = EngineConfig(
        demo.TARGET, demo.DRAFT, draft_length=8, threads=1, ctx=2048, sampling=SamplingConfig(temp=0)
    )
    with Engine(config) as engine:
        for prompt in PROMPTS[:3]:
            assert complete(client, prompt) == "".join(engine.generate(prompt, 24))


def test_a_stream_is_the_same_text(client, alone):
    assert streamed(client, PROMPTS[0]) == alone[PROMPTS[0]]


def test_a_chat(client):
    request = {"messages": [{"role": "user", "content": "hello"}], **GREEDY}
    whole = client.chat.completions.create(**request).choices[0].message
    assert whole.role == "assistant"
    assert whole.content
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.content
    developer = [{"role": "developer", "content": "be brief"}, *request["messages"]]
    system = [{"role": "system", "content": "be brief"}, *request["messages"]]
    answers = [
        client.chat.completions.create(**{**request, "messages": messages}).choices[0].message.content
        for messages in (developer, system)
    ]
    assert answers[0] == answers[1]


def test_an_answer_in_a_schema(client):
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    done = client.chat.completions.create(
        messages=[{"role": "user", "content": "choose"}], response_format=form, model="demo", temperature=0
    )
    assert json.loads(done.choices[0].message.content)["a"] in ("x", "y")


def test_tokens_are_limited_by_the_newer_name(client):
    done = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=3
    )
    assert done.usage.completion_tokens <= 3


def test_the_list_of_models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_many_clients_at_once(server, alone):
    """Nothing mixed up, nothing lost: each gets what it would get alone."""

    def work(turn):
        client = server.client()
        prompts = PROMPTS[turn:] + PROMPTS[:turn]
        return {
            prompt: (streamed if (turn + at) % 2 else complete)(client, prompt)
            for at, prompt in enumerate(prompts)
        }

    started = [in_thread(lambda turn=turn: work(turn)) for turn in range(QUEUE)]
    for thread, _ in started:
        thread.join(90)
    for _, results in started:
        assert results == [alone]


def test_a_full_queue(server, client, alone):
    """One more than may wait is told to come back; those that wait are served in the end."""
    long = Long(server)
    waiting = [in_thread(lambda: complete(server.client(), PROMPTS[0])) for _ in range(QUEUE)]
    wait_until(lambda: server.health()["queue"] == QUEUE)
    with pytest.raises(openai.RateLimitError) as refused:
        complete(client, PROMPTS[0])
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert refused.value.code == "queue_full"
    assert server.metric("spac_queue_length") == QUEUE
    long.leave()
    for thread, results in waiting:
        thread.join(60)
        assert results == [alone[PROMPTS[0]]]


def test_a_client_that_leaves_its_stream(server):
    before = server.metric("spac_tokens_total", kind="generated")
    left = server.metric("spac_requests_total", status="499")
    Long(server).leave()
    wait_until(lambda: not server.health()["running"])
    assert server.metric("spac_tokens_total", kind="generated") - before < Long.TOKENS
    assert server.metric("spac_requests_total", status="499") == left + 1


def test_a_client_that_leaves_without_its_answer(server):
    before = server.metric("spac_tokens_total", kind="generated")
    connection = server.connection()
    body = {**GREEDY, "prompt": "x", "max_tokens": Long.TOKENS, "logit_bias": {"0": -100}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {KEY}"})
    wait_until(lambda: server.health()["running"] == 1)
    connection.close()
    wait_until(lambda: not server.health()["running"])
    assert server.metric("spac_tokens_total", kind="generated") - before < Long.TOKENS


def test_a_client_that_leaves_the_queue(server, client, alone):
    long = Long(server)
    connection = server.connection()
    connection.request(
        "POST", "/v1/completions", json.dumps({**GREEDY, "prompt": "x"}), {"authorization": f"Bearer {KEY}"}
    )
    wait_until(lambda: server.health()["queue"] == 1)
    connection.close()
    wait_until(lambda: server.health()["queue"] == 0)
    long.leave()
    assert complete(client, PROMPTS[1]) == alone[PROMPTS[1]]


def test_figures_for_prometheus(server, client):
    def read():
        names = (
            "spac_steps_total",
            "spac_uploads_total",
            "spac_host_waits_total",
            "spac_queue_seconds_count",
        )
        return [server.metric(name) for name in names] + [
            server.metric("spac_tokens_total", kind="generated"),
            server.metric("spac_moved_bytes_total", kind="downloads"),
            server.metric("spac_requests_total", path="/v1/completions", status="200"),
        ]

    before = read()
    done = client.completions.create(prompt="import sys\n", **GREEDY)
    after = read()
    assert after[4] - before[4] == done.usage.completion_tokens
    assert after[6] - before[6] == 1
    assert all(now >= then for now, then in zip(after, before, strict=True))
    assert after[0] > before[0]
    assert 0 <= server.metric("spac_acceptance") <= 1
    assert 0 < server.metric("spac_hit_rate") <= 1
    assert server.metric("spac_tokens_per_second") > 0
