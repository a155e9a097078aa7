"""The server works with OpenAI's client: answers, streams, many clients at once, clients that leave."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

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
    create, user = client.chat.completions.create, {"role": "user", "content": "hello"}
    whole = create(messages=[user], **GREEDY).choices[0].message
    assert whole.role == "assistant"
    assert whole.content
    chunks = create(messages=[user], **GREEDY, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.content
    developer, system = (
        create(messages=[{"role": role, "content": "be brief"}, user], **GREEDY).choices[0].message.content
        for role in ("developer", "system")
    )
    assert developer == system
    limited = create(model="demo", messages=[user], max_completion_tokens=3)
    assert limited.usage.completion_tokens <= 3


def test_the_list_of_models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_any_model_is_the_one_that_is_served(client):
    chat = {"messages": [{"role": "user", "content": "hello"}], "model": "gpt-4", "max_tokens": 2}
    done = client.completions.create(**{**GREEDY, "model": "gpt-4", "prompt": "x"})
    assert (done.model, done.usage.completion_tokens, done.choices[0].finish_reason) == ("demo", 24, "length")
    assert client.chat.completions.create(**chat).model == "demo"
    assert {chunk.model for chunk in client.chat.completions.create(**chat, stream=True)} == {"demo"}


def test_timings_as_in_llama_server(client):
    chat = {**GREEDY, "messages": [{"role": "user", "content": "hello"}]}
    text = {**GREEDY, "prompt": "def add("}
    for create, asked in ((client.completions.create, text), (client.chat.completions.create, chat)):
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
    server.ask("GET", "/no%0Aline")
    server.ask("GET", "/page/page.css")
    server.ask("GET", "/page/events", key="wrong")
    wait_until(lambda: len(lines("/v1/completions")) > before and lines("/page/events 401"))
    for path, outcome in (("/v1/completions", "POST /v1/completions 200"), ("/no%0A", "GET /no%0Aline 404")):
        assert re.fullmatch(rf"\d\d:\d\d:\d\d {outcome}: [\d.]+ s", lines(path)[-1])
    assert not lines("/health")
    assert not lines("/page/page.css")
    assert "the demo pair tells short stories alone" in server.err


def test_many_clients_at_once(server, alone):
    """Answers are neither mixed up nor lost. Each client gets what it would get alone."""

    def work(turn):
        client = server.client()
        prompts = enumerate(PROMPTS[turn:] + PROMPTS[:turn])
        return {each: (streamed if (turn + at) % 2 else complete)(client, each) for at, each in prompts}

    with ThreadPoolExecutor(QUEUE) as pool:
        assert list(pool.map(work, range(QUEUE))) == [alone] * QUEUE


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
    assert server.post("/v1/messages/count_tokens", body)["input_tokens"] > 0
    assert server.metric("spac_running") == 1
    long.leave()


@pytest.mark.parametrize("character", ["\u20ac", "\U0001f600", "\xe9"])
def test_half_characters_count_and_do_not_hold_up_a_stream(server, client, character):
    """A bias lets the model say one byte of a character again and again."""
    tokens = server.post("/tokenize", content=character)["tokens"]
    for token in {tokens[0], tokens[-1]}:
        asked = {**GREEDY, "max_tokens": 24, "logit_bias": {str(token): 100}, "prompt": "x"}
        done = client.completions.create(**asked)
        assert done.usage.completion_tokens == 24
        assert done.choices[0].finish_reason == "length"
        chunks = list(client.completions.create(**asked, stream=True))
        assert "".join(each.choices[0].text for each in chunks if each.choices) == done.choices[0].text
        assert chunks[-1].choices[0].finish_reason == "length"


def send(server, **more):
    """Send a request whose answer nobody reads, and return its connection."""
    connection = server.connection()
    body = {**GREEDY, "prompt": "x", **more}
    connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {KEY}"})
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(server, stream):
    before = server.metric("spac_tokens_total", kind="generated")
    left = server.metric("spac_requests_total", status="499")
    if stream:
        Long(server).leave()
    else:
        connection = send(server, max_tokens=Long.TOKENS, logit_bias={"0": -100})
        wait_until(lambda: server.metric("spac_running") == 1)
        connection.close()
    wait_until(lambda: not server.metric("spac_running"))
    assert server.metric("spac_tokens_total", kind="generated") - before < Long.TOKENS
    assert server.metric("spac_requests_total", status="499") == left + 1


def test_a_client_that_leaves_the_queue(server, client, alone):
    long = Long(server)
    connection = send(server)
    wait_until(lambda: server.metric("spac_queue_length") == 1)
    connection.close()
    wait_until(lambda: server.metric("spac_queue_length") == 0)
    long.leave()
    assert complete(client, PROMPTS[1]) == alone[PROMPTS[1]]


def test_figures_for_prometheus(server, client):
    def read():
        assert b"llamacpp:n_decode_total" in server.ask("GET", "/metrics")[1]
        plain = ("steps_total", "queue_seconds_count")
        return [
            server.metric("spac_tokens_total", kind="generated"),
            server.metric("spac_requests_total", path="/v1/completions", status="200"),
            server.metric("spac_moved_bytes_total", kind="downloads"),
            *(server.metric(f"spac_{name}") for name in plain),
        ]

    before = read()
    done = client.completions.create(prompt="import sys\n", **GREEDY)
    tokens, requests, *others = [now - then for now, then in zip(read(), before, strict=True)]
    assert (tokens, requests) == (done.usage.completion_tokens, 1)
    assert min(others) >= 0
    assert 0 < others[1] <= tokens
