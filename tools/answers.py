"""Keep the bundled pair's answers of a commit, and compare those of two commits.

    PYTHONPATH=COMMIT/python python tools/answers.py FILE.npz
    PYTHONPATH=python python tools/answers.py FILE.npz OTHER.npz

The first command uses the `Llama` of another tree. It generates 64 tokens after each prompt, at temperature
0. The file has the texts, the log probabilities of the five most probable tokens at each place, and the
logits after each prompt. The second command prints how many are equal.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = (
    "def fibonacci(n):", "class Stack:\n", "import os\n", "x = 1\n", "# A queue\nclass Queue:\n", "def test_",
)  # fmt: skip
N = 64
SPLIT = {"device": "simulated", "slots": "25%"}
Arrays = dict[str, Any]


def answers() -> Arrays:
    """Return texts, log probabilities and logits by setting, prompt and kind."""
    from spac import Llama, demo

    draft = {"draft": str(demo.DRAFT)}
    found: Arrays = {}
    settings = {"default options": draft, "without a draft": {}, "25 % slots": {**draft, **SPLIT}}
    for setting, options in settings.items():
        llama = Llama(str(demo.TARGET), n_ctx=2048, verbose=False, state="off", **options)
        for index, prompt in enumerate(PROMPTS):
            choice: Any = llama(prompt, max_tokens=N, temperature=0, logprobs=5)["choices"][0]  # type: ignore
            tops = choice["logprobs"]["top_logprobs"]
            llama.reset()
            llama.eval(llama.tokenize(prompt.encode()))
            found |= {
                f"{setting}, texts, {index}": np.array(choice["text"]),
                f"{setting}, log probabilities, {index}": np.array([sorted(top.values()) for top in tops]),
                f"{setting}, logits, {index}": np.array(llama._ctx.get_logits_ith(-1)[: llama.n_vocab()]),
            }
        llama.close()
    return found


def compared(ours: Arrays, theirs: Arrays) -> list[str]:
    """Return a line for each setting and kind: how many are equal, bit for bit."""
    lines = []
    for kind in dict.fromkeys(name.rpartition(", ")[0] for name in ours):
        names = [name for name in ours if name.rpartition(", ")[0] == kind]
        n_equal = sum(np.array_equal(ours[name], theirs[name]) for name in names)
        lines.append(f"{kind}: {n_equal} of {len(names)} equal")
    return lines


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    if len(files) == 2:
        print("\n".join(compared(*(dict(np.load(file)) for file in files))))
    else:
        np.savez(files[0], **answers())
