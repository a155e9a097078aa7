"""The server's owner changes the device memory that it takes, while it answers."""

from __future__ import annotations

from functools import partial

import pytest

from spac.serve.admin import VRAM
from spac.serve.refusal import Refusal
from spac.serve.request_queue import RequestQueue
from spac.serve.state import SLOTS, ServerState
from tests.serve.conftest import in_thread

GREEDY = {"model": "demo", "prompt": "def add(", "max_tokens": 48, "temperature": 0}


@pytest.fixture
def change(server):
    """Return a function that changes the memory. At the end, the slots are as many as at the start."""
    yield partial(server.post, VRAM)
    server.post(VRAM, limit="none", slots="auto")


def test_slots_shrink_and_grow_while_it_answers(server, change):
    client = server.client()
    wanted = client.completions.create(**GREEDY).choices[0].text
    before = change(slots="auto")
    pieces = []
    for i, chunk in enumerate(client.completions.create(**GREEDY, stream=True)):
        pieces.append(chunk.choices[0].text)
        if i % 4 == 0:
            few = change(slots=2 + i)
            assert few["slots"] == 2 + i
            assert few["used"] == before["used"] - before["slot_bytes"] + few["slot_bytes"]
    assert "".join(pieces) == wanted
    assert change(slots="auto") == before
    thread, answers = in_thread(lambda: client.completions.create(**GREEDY).choices[0].text)
    for n in range(1, 8):
        assert change(slots=n)["slots"] == n
    thread.join()
    assert answers == [wanted]


def test_a_limit(server, change):
    before = change(slots="auto")
    limit = before["used"] - before["slot_bytes"] // 2
    within = change(limit=limit)
    assert within["used"] <= within["limit"] == limit
    assert within["slots"] < before["slots"]
    assert change(limit="none", slots="auto") == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "one is needed"), ({"vram": "8G"}, "not 'vram'"), ({"limit": "much"}, "vram_limit: must be"),
        ({"limit": True}, "limit: a number or a text"), ({"limit": -1}, "no memory"),
        ({"limit": 4096}, "weights, contexts and the rest"), ({"slots": None}, "slots: a number or a text"),
        ({"slots": [3]}, "slots: a number or a text"), ({"slots": -3}, "negative"),
    ],
)  # fmt: skip
def test_a_bad_request_is_one_line(server, fields, said):
    assert said in server.refusal(VRAM, fields)


def test_it_needs_json_and_the_key(server):
    assert server.ask("POST", VRAM, "limit=8G")[0] == 400
    assert server.ask("POST", VRAM, {"slots": 1}, key="another")[0] == 401


@pytest.mark.parametrize("path", [VRAM, f"{SLOTS}/0"])
def test_without_a_key_it_is_for_this_machine(path):
    state = ServerState(RequestQueue(1), None, ("plain",), "")
    for host in ("127.0.0.1", "::1"):
        state.admit(path, {"headers": [], "client": (host, 5000)})
    for host in ("192.0.2.7", "somewhere"):
        with pytest.raises(Refusal, match="needs an API key") as refused:
            state.admit(path, {"headers": [], "client": (host, 5000)})
        assert refused.value.status == 403
