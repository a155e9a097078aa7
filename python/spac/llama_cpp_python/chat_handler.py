"""The chat handler turns OpenAI's messages and tools into a prompt, and generated text into messages.

`llama_cpp.Llama.create_chat_completion` calls it, in apps (`spac.Llama(…, chat_format="common")`) and in the
server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from spac.chat.options import ChatOptions
from spac.config.grammar import of_schema
from spac.engine.chat_format import Answer, ChatFormat, Delta, called
from spac.engine.chat_messages import has_images, with_markers
from spac.errors import InputError
from spac.llama_cpp_python.logprobs import chat_logprobs
from spac.llama_cpp_python.sampling import ChatGrammar

ASKED = ("messages", "functions", "function_call", "tools", "tool_choice")
"""The arguments of llama_cpp that hold the request; the others say how it is answered."""


class ChatHandler:
    """A chat handler that uses the format of the model's family, in place of llama_cpp's handlers.

    It supports reasoning and tool calls.
    """

    def __init__(self, chat: ChatFormat, options: ChatOptions) -> None:
        """Make a handler for the format `chat`; `options` apply where a request sets nothing else."""
        self._chat, self._options = chat, options

    def __call__(
        self,
        *,
        llama: Any,
        stream: bool = False,
        stop: Any = None,
        request: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        """Return the answer as llama_cpp's handlers do: a dict, or with `stream` an iterator of dicts.

        `request` is the original request, if it holds more than the arguments. Raise InputError for an
        invalid request.
        """
        schema = _schema(given.pop("response_format", None))
        if request is None:
            request = {name: value for name, value in given.items() if name in ASKED and value is not None}
        images: list[bytes] = []
        if has_images(request["messages"]):
            messages, images = with_markers(
                request["messages"], _marker(llama), fetches=self._options.image_urls
            )
            request = {**request, "messages": messages}
        prompt = self._prompt(request, schema)
        choice = _completion_arguments(given)
        grammar = choice.pop("grammar", None)
        if grammar is None:
            grammar = ChatGrammar(prompt, self._budget_of(request), _instead(schema))
        stops = [each for each in ([stop] if isinstance(stop, str) else stop or ()) if each]
        in_parts = stream or bool(stops)

        def complete() -> Any:
            text = prompt.text.encode("utf-8", "replace")
            return llama.create_completion(
                prompt=llama.see(text, images)
                if images
                else llama.tokenize(text, add_bos=True, special=True),
                stop=[*prompt.stops, *self._chat.stop],
                stream=in_parts,
                grammar=grammar,
                **choice,
            )

        answer = self._chat.answer(prompt, stops)
        if in_parts:
            counts = not stream or bool((request.get("stream_options") or {}).get("include_usage"))
            chunks = _streamed(complete, answer, llama, prompt.preserved_tokens, counts=counts)
            return chunks if stream else _gathered(chunks, answer)
        with _preserved(llama, prompt.preserved_tokens):
            return _message(complete(), answer)

    def _prompt(self, request: Mapping[str, Any], schema: Mapping[str, Any] | None) -> Any:
        tools, choice = _tools(request)
        variables = {**self._options.variables, **(request.get("chat_template_kwargs") or {})}
        effort = request.get("reasoning_effort")
        if effort is not None:
            variables["reasoning_effort"] = effort
        thinking = variables.get("enable_thinking", self._options.reasoning)
        return self._chat.prompt(
            request["messages"],
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=bool(request.get("parallel_tool_calls", True)),
            json_schema=schema,
            thinking=bool(thinking) and effort != "none" and self._budget_of(request) != 0,
            variables=variables,
            continues=bool(request.get("continue_final_message", self._options.prefill)),
        )

    def _budget_of(self, request: Mapping[str, Any]) -> int:
        budget = request.get("reasoning_budget", self._options.reasoning_budget)
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < -1:
            raise InputError(f"reasoning_budget: a number of tokens is needed, or -1, not {budget!r}")
        return budget


def _marker(llama: Any) -> str | None:
    """Return the text that stands for an image in a prompt; None if the model sees no images."""
    projector = llama.engine.projector if llama.engine is not None else None
    return projector.marker if projector is not None else None


def _tools(request: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Return the tools that may be called, and "auto", "none" or "required".

    If the request names a tool, this tool is the only one.
    """
    tools = list(
        request.get("tools") or [{"type": "function", "function": f} for f in request.get("functions") or ()]
    )
    choice = request.get("tool_choice", request.get("function_call", "auto"))
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise InputError("tool_choice: a tool is required, and there are no tools")
        return tools, choice if tools else "none"
    name = choice.get("name") or (choice.get("function") or {}).get("name")
    tools = [tool for tool in tools if tool["function"].get("name") == name]
    if not tools:
        raise InputError(f"tool_choice: no tool is called '{name}'")
    return tools, "required"


def _schema(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON schema of a format, None for text. Raise InputError for other formats.

    A "json_object" without a schema may be any object.
    """
    kind = "text" if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema") or {"type": "object"}
    elif kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    else:
        raise InputError(f"response_format: the type {kind!r} is not text, json_object or json_schema")
    if not isinstance(schema, Mapping):
        raise InputError(f"response_format: the schema of {kind} is missing, or is not an object")
    return dict(schema)


def _instead(schema: Mapping[str, Any] | None) -> Any:
    """Return the grammar for llama_cpp's own loop, None without a schema.

    Raise InputError for a schema that cannot be made one.
    """
    from llama_cpp import LlamaGrammar

    if schema is None:
        return None
    return LlamaGrammar.from_string(of_schema(schema, name="response_format: "), verbose=False)


def _completion_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `create_completion` that those of `create_chat_completion` amount to."""
    logprobs = (given.get("top_logprobs") or 0) if given.get("logprobs") else None
    dropped = {*ASKED, "logprobs", "top_logprobs"}
    return {**{name: value for name, value in given.items() if name not in dropped}, "logprobs": logprobs}


def _message(made: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    choice = made["choices"][0]
    answer.push(choice["text"])
    answer.finish()
    reason = _reason(choice["finish_reason"], answer)
    return _answered({**made, "id": f"chat{made['id']}"}, answer, chat_logprobs(choice["logprobs"]), reason)


def _gathered(chunks: Iterator[Mapping[str, Any]], answer: Answer) -> dict[str, Any]:
    """Return the whole answer of a stream whose last chunk has the usage."""
    tokens, reason = list[Any](), None
    last: Mapping[str, Any] = {}
    for last in chunks:
        for choice in last["choices"]:
            tokens += (choice["logprobs"] or {"content": ()})["content"]
            reason = choice["finish_reason"]
    return _answered(last, answer, {"content": tokens, "refusal": None} if tokens else None, reason)


def _answered(made: Mapping[str, Any], answer: Answer, logprobs: Any, reason: str | None) -> dict[str, Any]:
    answered = {"index": 0, "message": answer.message(), "logprobs": logprobs, "finish_reason": reason}
    kept = {name: made[name] for name in ("id", "created", "model", "usage")}
    return {**kept, "object": "chat.completion", "choices": [answered]}


@contextlib.contextmanager
def _preserved(llama: Any, tokens: Collection[int]) -> Iterator[None]:
    llama.preserve_tokens(tokens)
    try:
        yield
    finally:
        llama.preserve_tokens(())


def _streamed(
    complete: Callable[[], Any],
    answer: Answer,
    llama: Any,
    preserved: Collection[int],
    *,
    counts: bool,
) -> Iterator[dict[str, Any]]:
    with _preserved(llama, preserved):
        yield from _chunks(complete(), answer, llama if counts else None)


def _chunks(made: Any, answer: Answer, counted: Any) -> Iterator[dict[str, Any]]:
    """Yield a stream's chunks; with `counted`, the last one holds the usage."""
    head: dict[str, Any] = {}
    tokens: list[Any] = []  # These are not sent yet. Their text may come with a later chunk.

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        logprobs = {"content": tokens.copy(), "refusal": None} if tokens else None
        tokens.clear()
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice]}

    with contextlib.closing(made):
        for part in made:
            choice = part["choices"][0]
            if not head:
                kept = {name: part[name] for name in ("created", "model")}
                head = {"id": f"chat{part['id']}", "object": "chat.completion.chunk", **kept}
                yield chunk({"role": "assistant", "content": ""})
            tokens += (chat_logprobs(choice["logprobs"]) or {"content": ()})["content"]
            for delta in answer.push(choice["text"]):
                yield chunk(_delta(delta))
            reason = "stop" if answer.stopped else choice["finish_reason"]
            if reason is not None:
                for delta in answer.finish():
                    yield chunk(_delta(delta))
                yield chunk({}, _reason("stop" if answer.stopped else reason, answer))
            if answer.stopped:
                break
    if counted is not None:
        stats = counted.stats
        usage = {"prompt_tokens": stats.prompt_tokens, "completion_tokens": stats.generated_tokens}
        details = {"prompt_tokens_details": {"cached_tokens": stats.cached_tokens}}
        yield {**head, "choices": [], "usage": {**usage, "total_tokens": sum(usage.values()), **details}}


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    if delta.index is None:
        return {"content": delta.content}
    if delta.name:
        return {"tool_calls": [{"index": delta.index, **called(delta.name, delta.arguments)}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.arguments}}]}


def _reason(reason: str, answer: Answer) -> str:
    return "tool_calls" if answer.tool_calls and reason == "stop" else reason
