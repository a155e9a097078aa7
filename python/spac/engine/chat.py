"""The answer to a chat's messages, as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from spac.engine.chat_format import Answer, Delta
from spac.engine.generation import Generation


class Chat(Iterator[Delta]):
    """An iterator over the additions to one answer, which `Engine.chat` makes.

    It works as a `Generation` does: it begins with the first addition that is asked for. An object that is
    dropped ends.
    """

    def __init__(self, generation: Generation, answer: Answer) -> None:
        """Read the answer's text from a generation that has not begun."""
        self.generation = generation
        """The generation of the answer's text, which has `stats`, `reason` and `cancel`."""
        self._answer, self._ready, self._over = answer, deque[Delta](), False

    def __next__(self) -> Delta:
        while not self._ready:
            if self._over:
                raise StopIteration
            self._read()
        return self._ready.popleft()

    def message(self) -> dict[str, Any]:
        """Read the answer to its end, and return it as OpenAI's message of the assistant.

        Its keys are `role`, `content` and, where the model wrote such, `reasoning_content` and `tool_calls`.
        """
        for _ in self:
            pass
        return self._answer.message()

    def cancel(self) -> None:
        """Stop after the step that runs. Any thread may call this."""
        self.generation.cancel()

    def _read(self) -> None:
        text = next(self.generation, None)
        if text is None:
            self._over = True
            self._ready += self._answer.finish()
            return
        self._ready += self._answer.push(text)
        if self._answer.stopped:
            self.generation.stop()
