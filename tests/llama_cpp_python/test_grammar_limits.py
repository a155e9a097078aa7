"""llama_cpp's own loop refuses the grammars that llama.cpp's loop refuses.

No exception may cross its C calls.
"""

from __future__ import annotations

import json
import subprocess
import sys

from spac import demo
from tests.cli.conftest import environment
from tools.hostile_grammars import GRAMMARS

PROGRAM = """
import json, sys
from spac import Llama
from spac.errors import InputError
from llama_cpp import LlamaGrammar, LogitsProcessorList

given = json.load(sys.stdin)
llm = Llama(given["model"], n_ctx=256, n_threads=1, verbose=False, state="off")
plain = LogitsProcessorList([lambda tokens, scores: scores])  # llama.cpp's loop has none.

def text(grammar):
    form = LlamaGrammar.from_string(grammar, verbose=False)
    made = llm("x", max_tokens=60, temperature=0, grammar=form, logits_processor=plain)
    return made["choices"][0]["text"]

results = {}
for name, grammar in given["grammars"].items():
    try:
        results[name] = text(grammar)
    except InputError as error:
        results[name] = "refused: " + str(error)
results["after"] = text('root ::= "yes"')
print(json.dumps(results))
"""


def test_grammars():
    given = {
        "model": str(demo.TARGET),
        "grammars": {name: grammar for name, (grammar, _) in GRAMMARS.items()},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(given), capture_output=True, text=True, timeout=100,
        env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert results.pop("after") == "yes"
    expected = {name: cause for name, (_, cause) in GRAMMARS.items()}
    assert {name: said for name, said in results.items() if not said.startswith("refused: ")} == {}
    assert {name: said for name, said in results.items() if expected[name] not in said} == {}
