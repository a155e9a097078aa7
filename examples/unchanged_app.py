"""Generate text with llama-cpp-python. This program knows nothing of spac, which runs it as it is.

spac exec --slots 25% examples/unchanged_app.py MODEL
"""

from __future__ import annotations

import sys

from llama_cpp import Llama


def main(model: str) -> None:
    """Continue a prompt."""
    llm = Llama(model, n_ctx=512, verbose=False)  # spac splits the experts between the device and the CPU
    for part in llm("Once upon a time, there was a cat", max_tokens=64, stream=True, seed=1):
        print(part["choices"][0]["text"], end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1])
