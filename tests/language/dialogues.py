"""Twenty dialogues with a chat model, by an app that knows nothing of spac. Usage: dialogues.py MODEL

It prints one line of JSON: the answers of each dialogue.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llama_cpp import Llama, LlamaGrammar

SMALL: dict[str, Any] = {
    "n_ctx": 512, "n_batch": 512, "n_threads": 1, "n_threads_batch": 1, "seed": 7, "verbose": False,
}  # fmt: skip
SINGLE = (
    "What is the capital of France?", "Is water wet? Answer yes or no.", "Name a colour.",
    "Who wrote Hamlet?", "What is 2 + 2?", "Say hello in French.", "Name three fruits.", "What do cows eat?",
)  # fmt: skip
SEVERAL = (
    ("My name is Ada.", "What is my name?"),
    ("Name an animal.", "Where does it live?", "What does it eat?"),
    ("Tell me about rain.", "Shorter, please."),
    ("Hi!", "Bye!"),
)
SYSTEMS = ("You answer in one word.", "You are a pirate.")
ANSWER = {"type": "object", "properties": {"city": {"type": "string"}, "big": {"type": "boolean"}}}
ANSWER["required"] = ["city", "big"]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": ANSWER}}]
CHOICE = {"type": "function", "function": {"name": "weather"}}


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def dialogue(llm: Llama, questions: tuple[str, ...], system: str = "", **more: Any) -> list[Any]:
    """Return text, call and reason of the end of each answer in one dialogue."""
    messages, answers = [turn("system", system)] if system else [], []
    for question in questions:
        messages.append(turn("user", question))
        options = {"max_tokens": 10, "temperature": 0, **more}
        # The libraries keep different parts of an earlier prompt, and rounding follows the batches.
        llm.reset()
        choice = llm.create_chat_completion(messages, **options)["choices"][0]
        said, call = choice["message"]["content"] or "", choice["message"].get("function_call")
        messages.append(turn("assistant", said))
        answers.append([said, call, choice["finish_reason"]])
    return answers


def main(model: str) -> None:
    llm = Llama(model_path=model, **SMALL)
    grammar = LlamaGrammar.from_string('root ::= ("yes" | "no") ", " [a-z ]{4,20} "."', verbose=False)
    schema = {"type": "json_object", "schema": ANSWER}
    answers = [dialogue(llm, (question,)) for question in SINGLE]
    answers += [dialogue(llm, questions) for questions in SEVERAL]
    answers += [dialogue(llm, SINGLE[:2], system) for system in SYSTEMS]
    answers.append(dialogue(llm, SEVERAL[1][:2], stop=[",", " is"]))
    answers.append(dialogue(llm, SINGLE[1:2], grammar=grammar))
    answers.append(dialogue(llm, SINGLE[:1], response_format=schema, max_tokens=32))
    answers.append(dialogue(llm, SEVERAL[3], temperature=0.8, repeat_penalty=1.1))
    calls = Llama(model_path=model, chat_format="chatml-function-calling", **SMALL)
    answers.append(dialogue(calls, SINGLE[:1], tools=TOOLS, tool_choice=CHOICE, max_tokens=32))
    answers.append(dialogue(calls, SINGLE[2:3], tools=TOOLS, tool_choice="auto"))
    print(json.dumps({"kind": type(llm).__module__, "answers": answers}))


if __name__ == "__main__":
    main(sys.argv[1])
