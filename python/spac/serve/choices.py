"""Several answers to one request, made one after another: `n` choices, and a list of prompts."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spac.serve.refusal import Refusal
from spac.stats import RunStats, ratio

Prompt = str | list[int]

MOST_CHOICES = 128
"""The largest number of choices in an answer, as in OpenAI's interface."""


def prompts_of(request: Mapping[str, Any], name: str = "prompt") -> list[Prompt]:
    """Return the texts, or lists of tokens, that the field `name` of a request has. Raise Refusal."""
    prompt = request.get(name, "")
    found = [prompt] if not isinstance(prompt, list) or _are_tokens(prompt) else prompt
    if not found or not all(isinstance(each, str) or _are_tokens(each) for each in found):
        text = f"{name}: a text, a list of tokens, or a list of these is needed, and no empty list"
        raise Refusal(400, text, param=name)
    return found


def _are_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def count_choices(request: Mapping[str, Any]) -> int:
    """Return the number of choices for each prompt; raise Refusal if the answer would have too many."""
    n, n_prompts = int(request.get("n", 1)), len(prompts_of(request))
    if not 1 <= n * n_prompts <= MOST_CHOICES:
        text = f"n: an answer has 1 to {MOST_CHOICES} choices, not {n} for each of {n_prompts} prompts"
        raise Refusal(400, text, param="n")
    if int(request.get("best_of", 1)) not in (1, n):
        raise Refusal(400, "best_of: only all choices can be returned: leave it out", param="best_of")
    return n


def runs_of(arguments: Sequence[Mapping[str, Any]], n: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every run: `n` for each prompt, each with its own seed and logits processors.

    As in llama-server, a given seed is that of the first choice, and the next ones count up.
    """
    for given in arguments:
        for at in range(n):
            run = {**given, "logits_processor": copy.deepcopy(given.get("logits_processor"))}
            if run.get("seed") is not None:
                run["seed"] += at
            yield run


def joined(answers: Sequence[Mapping[str, Any]], n: int) -> dict[str, Any]:
    """Return one answer with all choices; a prompt's tokens count once."""
    usages = [answer["usage"] for answer in answers]
    n_in = sum(usage["prompt_tokens"] for usage in usages[::n])
    n_out = sum(usage["completion_tokens"] for usage in usages)
    n_cached = sum(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for usage in usages[::n])
    choices = [{**answer["choices"][0], "index": at} for at, answer in enumerate(answers)]
    return {**answers[0], "choices": choices, "usage": {**usages[0], **_usage(n_in, n_out, n_cached)}}


def usage_of(runs: Sequence[RunStats], n: int) -> dict[str, Any]:
    """Return the usage of a stream from the statistics of its runs."""
    n_in = sum(run.prompt_tokens for run in runs[::n])
    n_cached = sum(run.cached_tokens for run in runs[::n])
    return _usage(n_in, sum(run.generated_tokens for run in runs), n_cached)


def _usage(n_in: int, n_out: int, n_cached: int) -> dict[str, Any]:
    counts = {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}
    return {**counts, "prompt_tokens_details": {"cached_tokens": n_cached}}


def chunks_of(
    streams: Iterable[Generator[Mapping[str, Any], None, None]],
    n_streams: int,
    runs: Sequence[RunStats],
    usage_n: int,
) -> Generator[dict[str, Any], None, None]:
    """Yield the chunks of streams one after another, each with its index; the last chunk has the timings.

    The last stream's end waits until the run is over, because `runs` has its statistics only then.
    With `usage_n` above 0, a chunk with the usage follows, for so many choices of each prompt.
    """
    head: dict[str, Any] = {}
    ends: list[dict[str, Any]] = []
    for index, stream in enumerate(streams):
        with contextlib.closing(stream):  # a reader may leave early, and `runs` has the run when it is closed
            for chunk in stream:
                if not chunk["choices"]:
                    continue  # the usage of one choice
                head = head or {name: chunk[name] for name in chunk if name != "choices"}
                made = {**chunk, **head, "choices": [{**each, "index": index} for each in chunk["choices"]]}
                if ends or (index == n_streams - 1 and chunk["choices"][0].get("finish_reason")):
                    ends.append(made)
                else:
                    yield made
    if runs and usage_n:
        ends.append({**head, "choices": [], "usage": usage_of(runs, usage_n)})
    for end in ends:
        yield {**end, "timings": timings(runs)} if runs and end is ends[-1] else end


def timings(runs: Sequence[RunStats]) -> dict[str, Any]:
    """Return llama-server's figures of the generations of a request."""
    cached, prompt, prefilled, predicted, drafted, accepted = (
        sum(getattr(run, f"{kind}_tokens") for run in runs)
        for kind in ("cached", "prompt", "prefilled", "generated", "drafted", "accepted")
    )
    prefill_s, decode_s = sum(run.prefill_s for run in runs), sum(run.decode_s for run in runs)
    n_read = prompt - cached
    made = {
        "cache_n": cached,
        "prompt_n": n_read,
        "prompt_ms": prefill_s * 1e3,
        "prompt_per_token_ms": (ratio(prefill_s, n_read) or 0.0) * 1e3,
        "prompt_per_second": ratio(prefilled, prefill_s) or 0.0,
        "predicted_n": predicted,
        "predicted_ms": decode_s * 1e3,
        "predicted_per_token_ms": (ratio(decode_s, predicted) or 0.0) * 1e3,
        "predicted_per_second": ratio(predicted, decode_s) or 0.0,
    }
    return {**made, "draft_n": drafted, "draft_n_accepted": accepted} if drafted else made
