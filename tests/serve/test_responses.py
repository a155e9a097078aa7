"""Answers of Responses have OpenAI's form: its client finds the parts of a stream, and gets typed answers."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from spac.serve.responses import ResponseForm
from tests.serve.test_chat import REASONED
from tests.serve.test_custom_tools import ADD

OFF = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0}
CALLS = {"input": "hello", "tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False, **OFF}


class Numbers(BaseModel):
    a: int
    b: int


PATH = "/v1/responses"


def events(server, **request):
    return server.events(PATH, {"input": "hello", **request})


def saying(text: str) -> dict:
    return {"grammar": f"root ::= {json.dumps(text)}", "temperature": 0}


def test_events_say_where_they_belong(thinking_server):
    made = events(thinking_server, **saying(REASONED))
    assert [each["sequence_number"] for each in made] == list(range(len(made)))
    output = made[-1]["response"]["output"]
    assert [each["type"] for each in output] == ["reasoning", "message"]
    for each in made:
        if "item" in each or "item_id" in each:
            assert output[each["output_index"]]["id"] == each.get("item_id", each.get("item", {}).get("id"))
        assert ("content_index" in each) == ("part" in each or "_text." in each["type"])
        assert ("logprobs" in each) == each["type"].startswith("response.output_text.")
    assert made[0]["response"]["output"] == []


def test_a_call_has_an_end(thinking_server):
    made = events(thinking_server, **CALLS)
    (call,) = made[-1]["response"]["output"]
    (end,) = [each for each in made if each["type"] == "response.function_call_arguments.done"]
    assert (end["arguments"], end["item_id"], end["name"]) == (call["arguments"], call["id"], "add")
    assert made[end["sequence_number"] + 1]["type"] == "response.output_item.done"


def test_an_answer_that_is_cut_says_so(thinking_server):
    cut = {"grammar": "root ::= [a-z]+", "temperature": 0, "max_output_tokens": 5}
    *_, before, end = events(thinking_server, **cut)
    assert end["type"] == "response.incomplete"
    assert end["response"]["output"][-1] == before["item"]
    for answer in (thinking_server.post(PATH, input="hello", **cut), end["response"]):
        assert (answer["status"], answer["output"][-1]["status"]) == ("incomplete", "incomplete")
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_that_ends_by_itself_is_complete(thinking_server, more):
    """This holds also if it needs all tokens that it may have."""
    said = {"input": "hello", **saying("hi there")}
    n = thinking_server.post(PATH, said)["usage"]["output_tokens"]
    answer = thinking_server.post(PATH, said, max_output_tokens=n + more)
    assert (answer["status"], answer["output"][0]["status"]) == ("completed", "completed")


def test_the_clients_stream(thinking_server):
    more = {"model": "demo", "input": "hello", "extra_body": saying("hi there")}
    with thinking_server.client().responses.stream(**more) as stream:
        deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
        answer = stream.get_final_response().output_text
    assert len(deltas) > 1
    assert "".join(deltas) == answer == "hi there"


def test_the_clients_typed_answer(thinking_server):
    asked = {"model": "demo", "input": "hello", "extra_body": OFF, "max_output_tokens": 300}
    made = thinking_server.client().responses.parse(text_format=Numbers, **asked)
    assert isinstance(made.output_parsed, Numbers)


@pytest.mark.parametrize("kind", ["json_object", "text"])
def test_other_forms_of_an_answer(thinking_server, kind):
    form = {"format": {"type": kind}, "verbosity": "low"}
    answer = thinking_server.post(PATH, input="hello", text=form, max_output_tokens=40, **OFF)
    assert answer["output"][0]["content"][0]["text"].startswith("{") == (kind == "json_object")


def test_what_is_no_event_is_passed_on():
    for data in (b":\n\n", b'data: {"error": {"code": 500, "message": "no"}}\n\n', b""):
        assert ResponseForm({}).part(data) == data
