"""lm-evaluation-harness: `local-completions`, which generates."""

from __future__ import annotations

import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from tools.clients import shared
from tools.clients.shared import KEY, SAID, URL


def model(key=KEY):
    os.environ["OPENAI_API_KEY"] = key
    given = {"tokenizer_backend": None, "tokenized_requests": False, "max_retries": 1}
    return LocalCompletionsAPI(model="demo", base_url=URL + "/completions", **given)


def asked(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=0)]


def generate(one=None, prompt="x"):
    options = {"until": ["\n\n"], "max_gen_toks": 20, "grammar": shared.GRAMMAR}
    return (one or model()).generate_until(asked("generate_until", prompt, options), disable_tqdm=True)


shared.run({
    "generation": lambda: shared.same(generate(), [SAID]),
    "wrong key": lambda: shared.wrong_key(lambda: generate(model(key="x"))),
})  # fmt: skip
