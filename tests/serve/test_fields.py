"""Every field of llama-server's requests is applied at every interface, or refused."""

from __future__ import annotations

import json
import re

import pytest

from tools.patches.source import published, sdist

FIELDS = {
    "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 1.5, "top_k": 7, "top_p": 0.5,
    "min_p": 0.25, "typical_p": 0.75, "top_n_sigma": 1.5, "repeat_penalty": 1.25, "repeat_last_n": 5,
    "presence_penalty": 0.5, "frequency_penalty": 0.25, "dry_multiplier": 0.5, "dry_base": 2.0,
    "dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"], "xtc_probability": 0.25,
    "xtc_threshold": 0.25, "mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.25, "adaptive_target": 0.5,
    "adaptive_decay": 0.5, "seed": 12345, "ignore_eos": True, "n_probs": 2, "min_keep": 2, "n_keep": 3,
    "n_discard": 2,
    "samplers": ["top_k"], "stop": ["zq"], "grammar": "root ::= [a-z]+", "timings_per_token": True,
    "post_sampling_probs": True, "reasoning_format": "none",
}  # fmt: skip
"""Fields with values that are no default."""
OTHERS = {
    "tried elsewhere, or by llama.cpp's tests": """n_predict max_tokens logit_bias verbose stream n_cmpl lora
        stream_options include_usage json_schema reasoning_control reasoning_budget_tokens n_indent
        reasoning_budget_message""",
    "for speed, or a limit of time": """cache_prompt n_cache_reuse backend_sampling sse_ping_interval
        t_max_predict_ms t_max_prompt_ms""",
    "what an answer tells": "return_tokens return_progress response_fields",
    "the chat template sets it": """grammar_lazy chat_format generation_prompt parse_tool_calls chat_parser
        echo continue_final_message preserved_tokens grammar_triggers reasoning_budget_start_tag
        reasoning_budget_end_tags""",
}
"""Other fields, with the reason why they are not tried here."""
USER = [{"role": "user", "content": "x"}]
SHORT = {
    "/completion": {"prompt": "a", "n_predict": 3}, "/v1/completions": {"prompt": "a", "max_tokens": 3},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 3},
    "/v1/responses": {"input": "x", "max_output_tokens": 3},
    "/v1/messages": {"messages": USER, "max_tokens": 3},
}  # fmt: skip


@pytest.mark.skipif(sdist() is None, reason="the sdist of the pin is not in the cache")
def test_all_fields_are_known():
    text = published("tools/server/server-schema.cpp")["tools/server/server-schema.cpp"]
    names = set(re.findall(r'new field_\w+\("(\w+)"', text))
    assert len(names) > 60
    assert names <= {*FIELDS, *" ".join(OTHERS.values()).split()}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_fields_are_applied(thinking_server, path):
    answer = thinking_server.post(path, {**SHORT[path], **FIELDS, "verbose": True})
    made_with = answer.get("__verbose", answer)["generation_settings"]
    assert {name: made_with[name] for name in FIELDS} == FIELDS


@pytest.mark.parametrize("path", SHORT)
def test_fields_of_another_type_are_refused(thinking_server, path):
    """An interface that does not read a field would not notice."""
    for name in FIELDS:
        thinking_server.post(path, {**SHORT[path], name: {"odd": 1}}, status=400)


def test_the_text_of_messages_follows_llama_servers_fields(thinking_server):
    asked = {**SHORT["/v1/messages"], "max_tokens": 100, "temperature": 0, "thinking": {"type": "disabled"}}
    schema = {"schema": {"const": [1, 2]}}
    for form in (
        {"grammar": 'root ::= "[1, 2]"'},
        {"response_format": {"type": "json_schema", "json_schema": schema}},
        {"output_config": {"format": {"type": "json_schema", **schema}}},
        {"output_format": {"type": "json_schema", **schema}},
    ):
        content = thinking_server.post("/v1/messages", asked | form)["content"]
        assert json.loads("".join(part["text"] for part in content if part["type"] == "text")) == [1, 2], form


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_messages_and_responses_have_one_answer(thinking_server, path):
    for name in ("n", "n_cmpl"):
        assert "Responses and Messages have one answer" in thinking_server.refusal(
            path, {**SHORT[path], name: 2}
        )
        thinking_server.post(path, {**SHORT[path], name: 1})


def test_messages_without_reasoning(thinking_server):
    def count(**fields):
        body = {"model": "m", "messages": USER, **fields}
        return thinking_server.post("/v1/messages/count_tokens", body)["input_tokens"]

    off = count(chat_template_kwargs={"enable_thinking": False})
    assert count(thinking={"type": "disabled"}) == off > count() == count(thinking={"type": "enabled"})


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_a_stop_string_without_a_character_stops_nothing(thinking_server, path):
    asked = {**SHORT[path], "temperature": 0}
    made = [thinking_server.post(path, asked, stop=stop) for stop in (None, "", ["", "zq"])]
    first, *others = [each.get("content") or each["choices"][0] for each in made]
    assert others == [first] * 2
