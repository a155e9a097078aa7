"""An app as in llama-cpp-python's README, which knows nothing of spac. Usage: readme_app.py MODEL

It prints one line of JSON with everything that it got.
"""

import json
import sys

from llama_cpp import Llama, LlamaGrammar

PROMPT = "The following functions are all defined in"
MESSAGES = [
    {"role": "system", "content": "You are an assistant who perfectly describes modules."},
    {"role": "user", "content": "Describe the module os in detail please."},
]
USER = {
    "type": "object",
    "properties": {"team": {"enum": ["red", "blue"]}, "open": {"type": "boolean"}},
    "required": ["team", "open"],
}
TOOLS = [{"type": "function", "function": {"name": "UserDetail", "parameters": USER}}]
SMALL = {"n_ctx": 384, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


def completions(model: str) -> dict:
    llm = Llama(model_path=model, seed=1337, **SMALL)
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no, " [a-z]{4,9}', verbose=False)
    plain = llm(PROMPT, max_tokens=32, stop=["Q:", "\n\n"], temperature=0, echo=True)
    streamed = llm.create_chat_completion(MESSAGES, max_tokens=24, temperature=0, stream=True)
    return {
        "kind": type(llm).__module__,
        "completion": plain["choices"],
        "usage": plain["usage"],
        "stopped": llm(PROMPT, max_tokens=32, stop=["the"], temperature=0)["choices"],
        "sampled": llm(PROMPT, max_tokens=24, temperature=0.9, seed=3, repeat_penalty=1.2)["choices"],
        "penalized": llm(PROMPT, max_tokens=24, temperature=0, repeat_penalty=1.3)["choices"],
        "chat": llm.create_chat_completion(MESSAGES, max_tokens=24, temperature=0)["choices"],
        "streamed": [chunk["choices"][0]["delta"] for chunk in streamed],
        "grammar": llm(PROMPT, max_tokens=12, temperature=0, grammar=grammar)["choices"],
        "json": llm.create_chat_completion(
            MESSAGES, max_tokens=32, temperature=0, response_format={"type": "json_object", "schema": USER}
        )["choices"],
        "biased": llm(PROMPT, max_tokens=4, temperature=0, logit_bias={"65": 100})["choices"],
    }


def functions(model: str) -> dict:
    llm = Llama(model_path=model, chat_format="chatml-function-calling", **SMALL)
    answer = llm.create_chat_completion(
        MESSAGES,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        max_tokens=32,
        temperature=0,
    )
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    return {"function": call}


def embeddings(model: str) -> dict:
    llm = Llama(model_path=model, embedding=True, **SMALL)
    data = llm.create_embedding(["Hello, world!", "Goodbye"])["data"]
    return {"embeddings": [one["embedding"] for one in data]}


def logprobs(model: str) -> dict:
    llm = Llama(model_path=model, logits_all=True, **SMALL)
    return {"logprobs": llm(PROMPT, max_tokens=6, temperature=0, logprobs=3, echo=True)["choices"]}


if __name__ == "__main__":
    parts = (completions, functions, embeddings, logprobs)
    print(
        json.dumps(
            {name: value for part in parts for name, value in part(sys.argv[1]).items()}, default=float
        )
    )
