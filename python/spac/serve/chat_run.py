"""One chat on the model, with the figures that interfaces beside OpenAI's report.

They are the prompt's tokens at the beginning, the tokens that were still in the context, and the stop
sequence that was met.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import llama_cpp

from spac.engine.text_stream import StopSearch


class ChatRun:
    """Behaves like the served model towards its chat format, and observes the completion of the prompt."""

    def __init__(self, llama: Any, arguments: Mapping[str, Any]) -> None:
        """Prepare a chat; `arguments` are those of `create_chat_completion`."""
        stop = arguments.get("stop") or ()
        self._llama, self._arguments = llama, arguments
        self._stops: Sequence[str] = [stop] if isinstance(stop, str) else list(stop)
        self._met: str | None = None
        self._n_prompt = 0
        self._counts = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def count(self) -> dict[str, Any]:
        """Return a chat completion without a token, whose usage counts the prompt's tokens.

        Nothing is evaluated.
        """
        self._counts = True
        made: dict[str, Any] = self._chat(stream=False)
        return made

    def answer(self) -> dict[str, Any]:
        """Return a chat completion; its choice has a `stop_reason`, the stop sequence met or None."""
        made: dict[str, Any] = self._chat(stream=False)
        choice = made["choices"][0]
        reasoning = choice["message"].get("reasoning_content", "")
        return {
            **made,
            "choices": [self._with_reason(choice)],
            "usage": self._usage(made["usage"], reasoning),
        }

    def chunks(self) -> Generator[dict[str, Any], None, None]:
        """Yield a chat completion's chunks; the first one has a `usage` already."""
        reasoning, is_first = "", True
        for chunk in self._chat(stream=True):
            made = {**chunk, "choices": [self._with_reason(choice) for choice in chunk["choices"]]}
            reasoning += "".join(each["delta"].get("reasoning_content", "") for each in chunk["choices"])
            if is_first:
                made["usage"] = {"prompt_tokens": self._n_prompt, "completion_tokens": 0}
            elif chunk.get("usage"):
                made["usage"] = self._usage(chunk["usage"], reasoning)
            is_first = False
            yield made

    def create_completion(
        self, *, prompt: Sequence[int], stop: Sequence[str], stream: bool, **more: Any
    ) -> Any:
        """Complete the prompt; the chat format calls this.

        The client's stop sequences are searched for here, because llama_cpp does not report which one it met.
        """
        self._n_prompt = len(prompt)
        if self._counts:
            return _completion("", {}, self._n_prompt, 0)
        if not self._stops:
            return self._llama.create_completion(prompt=prompt, stop=stop, stream=stream, **more)
        others = [sequence for sequence in stop if sequence not in self._stops]
        parts = self._until_stop(
            self._llama.create_completion(prompt=prompt, stop=others, stream=True, **more)
        )
        return parts if stream else self._whole(parts)

    def _chat(self, *, stream: bool) -> Any:
        # The method is called unbound, so that the chat format's handler asks this object for the completion.
        return llama_cpp.Llama.create_chat_completion(self, **{**self._arguments, "stream": stream})

    def _with_reason(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        return {**choice, "stop_reason": self._met} if choice.get("finish_reason") else dict(choice)

    def _usage(self, usage: Mapping[str, Any], reasoning: str) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if reasoning:
            tokens = self.tokenize(reasoning.encode("utf-8", "replace"), add_bos=False, special=True)
            n_reasoned = min(len(tokens), usage["completion_tokens"])
            details["completion_tokens_details"] = {"reasoning_tokens": n_reasoned}
        if (stats := self.stats) is not None:
            details["prompt_tokens_details"] = {"cached_tokens": stats.cached_tokens}
        return {**usage, **details}

    def _until_stop(self, parts: Generator[Mapping[str, Any], None, None]) -> Iterator[dict[str, Any]]:
        stops = StopSearch(self._stops)
        for part in parts:
            choice = part["choices"][0]
            text, reason = stops.push(choice["text"]), choice["finish_reason"]
            if stops.met is not None:
                self._met, reason = stops.met, "stop"
                parts.close()
            elif reason is not None:
                text += stops.rest()
            yield {**part, "choices": [{**choice, "text": text, "finish_reason": reason}]}
            if stops.met is not None:
                return

    def _whole(self, parts: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
        texts, last = [], dict[str, Any]()
        for part in parts:
            texts.append(part["choices"][0]["text"])
            last = dict(part)
        n_made = 0 if self.stats is None else self.stats.generated_tokens
        return _completion("".join(texts), last, self._n_prompt, n_made)


def _completion(text: str, last: Mapping[str, Any], n_prompt: int, n_made: int) -> dict[str, Any]:
    """Return the completion that llama_cpp makes of a stream that ended with `last`.

    An empty `last` gives an empty answer.
    """
    reason = last["choices"][0]["finish_reason"] if last else "stop"
    return {
        "id": last.get("id", "cmpl-"),
        "object": "text_completion",
        "created": last.get("created", 0),
        "model": last.get("model", ""),
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_made,
            "total_tokens": n_prompt + n_made,
        },
    }
