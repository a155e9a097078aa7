"""llama-server's own completions: requests become OpenAI's, and the answers get llama-server's form."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from spac.engine.text_stream import StopSearch
from spac.serve import fields
from spac.serve.choices import prompts_of, timings
from spac.serve.fields import refuse
from spac.serve.request_context import RequestContext

PATH = "/completion"
NO_LIMIT = 2**31 - 1
UNKNOWN = {
    "n_probs": "there are no probabilities in this form: /v1/completions has logprobs",
    "n_cmpl": "one completion is made: /v1/completions has n",
    "ignore_eos": "not supported: leave it out",
    "lora": "adapters hold for all requests (--lora): leave it out",
    "samplers": "the order of samplers is fixed: leave it out",
}
"""Fields that would change the answer, and why they are refused."""


def completion(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for OpenAI's completions; raise Refusal if it is invalid.

    The stop sequences are left out: `events` searches for them, because its answer tells which one was met.
    """
    for name, why in UNKNOWN.items():
        if request.get(name) not in (None, False, 0, []) and (name, request[name]) != ("n_cmpl", 1):
            raise refuse(name, why)
    if "prompt" not in request or len(prompts_of(request)) != 1:
        raise refuse("prompt", "one text or list of tokens is needed: /v1/completions takes several")
    _stops(request)
    limit = request.get("n_predict", -1)
    asked = {**fields.passed(request), "prompt": request["prompt"]}
    asked["max_tokens"] = NO_LIMIT if limit == -1 else fields.count(limit, "n_predict")
    if asked.get("seed") == -1:
        del asked["seed"]
    if "mirostat" in request:
        asked["mirostat_mode"] = request["mirostat"]
    if isinstance(bias := asked.get("logit_bias"), list):
        asked["logit_bias"] = _bias(bias)
    if "json_schema" in request:
        asked["response_format"] = fields.schema_format(request["json_schema"], "json_schema")
    return asked


def _stops(request: Mapping[str, Any]) -> list[str]:
    stops = request.get("stop", [])
    given = [stops] if isinstance(stops, str) else stops
    if not isinstance(given, list) or not all(isinstance(stop, str) for stop in given):
        raise refuse("stop", "a list of strings is needed")
    return given


def _bias(pairs: list[Any]) -> dict[str, float]:
    """Return llama-server's pairs [token, bias] as OpenAI's object. A bias of false bans the token."""
    found = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            raise refuse("logit_bias", "pairs of a token's number and a bias are needed")
        found[str(pair[0])] = -100.0 if pair[1] is False else pair[1]
    return found


def events(
    chunks: Generator[Mapping[str, Any], None, None], context: RequestContext
) -> Generator[dict[str, Any], None, None]:
    """Yield the parts of a completion's text in llama-server's form, then the end with all figures.

    `chunks` are those of OpenAI's completion.
    """
    search, reason, model = StopSearch(_stops(context.original)), "stop", ""
    for chunk in chunks:
        choice, model = chunk["choices"][0], chunk["model"]
        text = search.push(choice["text"])
        reason = choice["finish_reason"] or reason
        if choice["finish_reason"] and search.met is None:
            text += search.rest()
        if text:
            yield {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": 0}
        if search.met is not None:
            break
    chunks.close()  # the run's statistics are complete after this
    kind = "word" if search.met is not None else {"length": "limit"}.get(reason, "eos")
    yield {**_end(context, kind), "model": model, "stopping_word": search.met or ""}


def _end(context: RequestContext, kind: str) -> dict[str, Any]:
    given = {name: value for name, value in context.request.items() if name != "prompt"}
    figures = timings(context.runs)
    return {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "stop_type": kind,
        "tokens_predicted": figures["predicted_n"],
        "tokens_evaluated": figures["cache_n"] + figures["prompt_n"],
        "tokens_cached": figures["cache_n"],
        "truncated": False,
        "generation_settings": given,
        "prompt": context.original.get("prompt"),
        "timings": figures,
    }


def whole(parts: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the answer to a request that wants no stream."""
    *texts, end = parts
    return {**end, "content": "".join(part["content"] for part in texts)}
