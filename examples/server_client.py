"""Ask a running server through OpenAI's client. Run `spac serve`, and then in another terminal:

python examples/server_client.py [URL]
"""

from __future__ import annotations

import os
import sys

import openai

PROMPT = "Once upon a time, there was a cat"


def main(url: str) -> None:
    """Stream one completion, then show the number of prompt tokens that the server reports."""
    # A server that has no key accepts any key.
    with openai.OpenAI(base_url=url, api_key=os.environ.get("SPAC_API_KEY", "none")) as client:
        [model] = client.models.list().data
        print(PROMPT, end="")
        with client.completions.create(
            model=model.id, prompt=PROMPT, max_tokens=40, temperature=0, stream=True
        ) as chunks:
            for chunk in chunks:
                print(chunk.choices[0].text, end="", flush=True)
        print()
        # When a prompt returns, it is not evaluated again. `cached_tokens` counts the tokens that were kept.
        done = client.completions.create(model=model.id, prompt=PROMPT, max_tokens=1, temperature=0)
        assert done.usage is not None
        print(f"model {model.id}: {done.usage.prompt_tokens} prompt tokens", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1")
