"""The server works with OpenAI's client: answers, streams, many clients at once, clients that leave."""

from __future__ import annotations

import json
import re

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
    """Return the answer to every prompt when no other client is there."""
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


def test_a_conversation_that_comes_back_is_not_read_again(client):
    """Another conversation comes in between, as an assistant's own small requests do."""
    long = "".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(12))
    other = "".join(f"class C{i}:\n    name = 'c{i}'\n\n" for i in range(14))

    def cached(prompt):
        usage = client.completions.create(prompt=prompt, **GREEDY).usage
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

    n_long, _ = cached(long)
    n_other, found = cached(other)
    assert n_long > 100
    assert found < 10
    assert cached(long + "def") >= (n_long, n_long - 1)
    assert cached(other) == (n_other, n_other - 1)
    chat = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": long}]}
    client.chat.completions.create(**chat)
    again = client.chat.completions.create(**chat).usage
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1
    *_, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **chat)
    assert last.usage.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1


def test_log_probabilities_of_a_chat(client):
    asked = {**GREEDY, "messages": [{"role": "user", "content": "hello"}], "logprobs": True}
    client.chat.completions.create(**asked)  # The slot holds the prompt then: equal batches round alike.
    choice = client.chat.completions.create(**asked, top_logprobs=3).choices[0]
    found = choice.logprobs.content
    assert "".join(each.token for each in found) == choice.message.content
    assert all(bytes(each.bytes).decode() == each.token for each in found)
    assert all(each.logprob == each.top_logprobs[0].logprob for each in found)
    assert {len(each.top_logprobs) for each in found} == {3}
    chunks = client.chat.completions.create(**asked, top_logprobs=3, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [each for part in parts if part for each in part.content] == found
    alone = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [each.token for each in alone] == [each.token for each in found]
    assert [each.logprob for each in alone] == pytest.approx([each.logprob for each in found], abs=1e-4)


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


def test_any_model_is_the_one_that_is_served(client):
    chat = {"messages": [{"role": "user", "content": "hello"}], "model": "gpt-4", "max_tokens": 2}
    assert client.completions.create(**{**GREEDY, "model": "gpt-4", "prompt": "x"}).model == "demo"
    assert client.chat.completions.create(**chat).model == "demo"
    assert {chunk.model for chunk in client.chat.completions.create(**chat, stream=True)} == {"demo"}


def test_timings_as_in_llama_server(client):
    chat = {**GREEDY, "messages": [{"role": "user", "content": "hello"}]}
    for create, asked in (
        (client.completions.create, {**GREEDY, "prompt": "def add("}),
        (client.chat.completions.create, chat),
    ):
        done = create(**asked)
        *others, last = create(**asked, stream=True)
        assert not [chunk for chunk in others if hasattr(chunk, "timings")]
        for found in (done.timings, last.timings):
            assert found["cache_n"] + found["prompt_n"] == done.usage.prompt_tokens
            assert found["predicted_n"] == done.usage.completion_tokens
            assert found["predicted_ms"] > 0
            assert 0 <= found["draft_n_accepted"] <= found["draft_n"]


def test_the_log(server, client):
    """The line comes when the answer has been sent."""

    def lines(path):
        return [line for line in server.err.splitlines() if path in line]

    before = len(lines("/v1/completions"))
    complete(client, PROMPTS[0])
    wait_until(lambda: len(lines("/v1/completions")) > before)
    line = lines("/v1/completions")[-1]
    assert re.fullmatch(r"\d\d:\d\d:\d\d POST /v1/completions 200: [\d.]+ s", line)
    server.ask("GET", "/no%0Aline")
    wait_until(lambda: lines("/no%0Aline"))
    assert re.fullmatch(r"[\d:]+ GET /no%0Aline 404: [\d.]+ s", lines("/no%0Aline")[0])
    assert not lines("/health")
    server.ask("GET", "/page/page.css")
    server.ask("GET", "/page/events", key="wrong")
    wait_until(lambda: lines("/page/events 401"))
    assert not lines("/page/page.css")
    assert "the demo pair knows Python code alone" in server.err


def test_many_clients_at_once(server, alone):
    """Answers are neither mixed up nor lost. Each client gets what it would get alone."""

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
    """A client beyond the limit is asked to come back later. The waiting ones are served in the end."""
    long = Long(server)
    waiting = [in_thread(lambda: complete(server.client(), PROMPTS[0])) for _ in range(QUEUE)]
    wait_until(lambda: server.metric("spac_queue_length") == QUEUE)
    with pytest.raises(openai.RateLimitError) as refused:
        complete(client, PROMPTS[0])
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert server.metric("spac_queue_length") == QUEUE
    long.leave()
    for thread, results in waiting:
        thread.join(60)
        assert results == [alone[PROMPTS[0]]]


def test_tokens_are_counted_while_an_answer_is_made(server):
    long = Long(server)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    status, answer = server.ask("POST", "/v1/messages/count_tokens", body)
    assert (status, json.loads(answer)["input_tokens"] > 0) == (200, True)
    assert server.metric("spac_running") == 1
    long.leave()


@pytest.mark.parametrize("character", ["\u20ac", "\U0001f600", "\xe9"])
def test_half_characters_count_and_do_not_hold_up_a_stream(server, client, character):
    """A bias lets the model say one byte of a character again and again."""
    tokens = json.loads(server.ask("POST", "/tokenize", {"content": character})[1])["tokens"]
    for token in {tokens[0], tokens[-1]}:
        asked = {**GREEDY, "max_tokens": 200, "logit_bias": {str(token): 100}, "prompt": "x"}
        done = client.completions.create(**asked)
        assert done.usage.completion_tokens == 200
        assert done.choices[0].finish_reason == "length"
        chunks = list(client.completions.create(**asked, stream=True))
        assert "".join(each.choices[0].text for each in chunks if each.choices) == done.choices[0].text
        assert chunks[-1].choices[0].finish_reason == "length"


def test_a_client_that_leaves_its_stream(server):
    before = server.metric("spac_tokens_total", kind="generated")
    left = server.metric("spac_requests_total", status="499")
    Long(server).leave()
    wait_until(lambda: not server.metric("spac_running"))
    assert server.metric("spac_tokens_total", kind="generated") - before < Long.TOKENS
    assert server.metric("spac_requests_total", status="499") == left + 1


def test_a_client_that_leaves_without_its_answer(server):
    left = server.metric("spac_requests_total", status="499")
    connection = server.connection()
    body = {**GREEDY, "prompt": "x", "max_tokens": Long.TOKENS, "logit_bias": {"0": -100}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {KEY}"})
    wait_until(lambda: server.metric("spac_running") == 1)
    connection.close()
    wait_until(lambda: not server.metric("spac_running"))
    assert server.metric("spac_requests_total", status="499") == left + 1


def test_a_client_that_leaves_the_queue(server, client, alone):
    long = Long(server)
    connection = server.connection()
    connection.request(
        "POST", "/v1/completions", json.dumps({**GREEDY, "prompt": "x"}), {"authorization": f"Bearer {KEY}"}
    )
    wait_until(lambda: server.metric("spac_queue_length") == 1)
    connection.close()
    wait_until(lambda: server.metric("spac_queue_length") == 0)
    long.leave()
    assert complete(client, PROMPTS[1]) == alone[PROMPTS[1]]


def test_figures_for_prometheus(server, client):
    def read():
        names = (
            "spac_steps_total",
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
    assert after[2] - before[2] == done.usage.completion_tokens
    assert after[4] - before[4] == 1
    assert all(now >= then for now, then in zip(after, before, strict=True))
    assert after[0] > before[0]
