"""Chat with a model through llama-cpp-python's interface. A line is a message. An empty one ends the chat.

python examples/chat.py [MODEL [DRAFT]]
"""

from __future__ import annotations

import sys

from spac import Llama, demo


def main(model: str, draft: str | None) -> None:
    """Answer the lines of stdin."""
    llm = Llama(
        model,
        draft=draft,
        slots="25%",
        n_ctx=2048,
        verbose=False,
        chat_format="common",  # the format of the model's family, from llama.cpp's own templates
    )
    messages = [{"role": "system", "content": "Answer briefly."}]
    while line := sys.stdin.readline().strip():
        messages.append({"role": "user", "content": line})
        answer = ""
        for chunk in llm.create_chat_completion(messages, max_tokens=48, stream=True):
            text = chunk["choices"][0]["delta"].get("content") or ""
            answer += text
            print(text, end="", flush=True)
        print()
        # The context still holds the conversation, so only the new message of the next prompt is evaluated.
        messages.append({"role": "assistant", "content": answer})
    print(llm.stats.summary(), file=sys.stderr)
    llm.close()


if __name__ == "__main__":
    paths = sys.argv[1:] or [str(demo.TARGET), str(demo.DRAFT)]
    main(paths[0], paths[1] if len(paths) > 1 else None)
