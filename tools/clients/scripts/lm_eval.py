"""lm-evaluation-harness: `local-completions`, which generates, and compares the likelihood of answers."""

from __future__ import annotations

import json
import os
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from tools.clients.shared import ADDRESS, GRAMMAR, KEY, SAID, URL, run, same, wrong_key


def model(key=KEY):
    os.environ["OPENAI_API_KEY"] = key
    given = {"tokenizer_backend": None, "tokenized_requests": False, "max_retries": 1}
    return LocalCompletionsAPI(model="demo", base_url=URL + "/completions", **given)


def asked(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=0)]


def generate(one=None, prompt="x"):
    options = {"until": ["\n\n"], "max_gen_toks": 20, "grammar": GRAMMAR}
    return (one or model()).generate_until(asked("generate_until", prompt, options), disable_tqdm=True)


class Scoring(LocalCompletionsAPI):
    """The server's own tokenizer takes the place of one from a hub."""

    def tok_encode(self, string, **_):
        data = json.dumps({"content": string}).encode()
        request = urllib.request.Request(ADDRESS + "/tokenize", data, {"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    def create_message(self, messages, generate=False):
        return messages  # as tokens


def likelihoods():
    os.environ["OPENAI_API_KEY"] = KEY
    one = Scoring(
        model="demo", base_url=URL + "/completions", tokenizer_backend=None, tokenized_requests=True
    )
    one.tokenizer = one  # so that it takes log-likelihoods
    answers = [
        asked("loglikelihood", "def add(a, b):\n", each)[0] for each in ("    return a", "    zebra q")
    ]
    (likely, _), (odd, is_greedy) = one.loglikelihood(answers, disable_tqdm=True)
    assert odd < likely < 0, (likely, odd)
    assert not is_greedy


run({
    "log-likelihoods": likelihoods,
    "generation": lambda: same(generate(), [SAID]),
    "wrong key": lambda: wrong_key(lambda: generate(model(key="x"))),
})  # fmt: skip
