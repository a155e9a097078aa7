"""Run the stock library over a recorded run's batches: `python -m tests.engine.replay JOB.json OUT.json`.

The library is the one that LLAMA_CPP_LIB_PATH names. JOB.json has a list of jobs: a model, a context's
settings, a prompt and the drafts of every batch, the first of which has the prompt. OUT gets the tokens that
greedy verification of each job's batches gives. A job may also ask for `gaps`: by how much the logit of one
token exceeds another's after some tokens, evaluated one by one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.forked import ROOT, reference
from tools.compare import Case, Settings


@dataclass(frozen=True)
class Recording:
    """Record of the engine's run. The drafts include those that were rejected.

    The first draft stands in the prompt's batch, whose last token gives the first one of the text. The loop
    drafts nothing there.
    """

    model: str
    prompt: list[int]
    drafts: list[list[int]] = field(default_factory=list)
    gaps: list[tuple[list[int], int, int]] = field(default_factory=list)  # (tokens, one token, another)
    lora: str = ""  # an adapter to apply, or none
    lora_scale: float = 1.0


def replay(recording: Recording, settings: Settings, library: Path, folder: Path) -> dict[str, Any]:
    return replay_all([recording], settings, library, folder)[0]


def replay_all(
    recordings: list[Recording], settings: Settings, library: Path, folder: Path
) -> list[dict[str, Any]]:
    job, out = folder / "job.json", folder / "out.json"
    job.write_text(json.dumps([{**asdict(each), "settings": asdict(settings)} for each in recordings]))
    words = [str(job), str(out)]
    done = reference(library).run("tests.engine.replay", words, ROOT, os.environ, None)
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(out.read_text())
    return results


def verify(context: Any, prompt: list[int], drafts: list[list[int]], ends: list[int]) -> list[int]:
    """Decode greedily with given drafts and without an end token. Return the tokens after the prompt."""
    window, position = prompt, 0  # the tokens before the next draft, and their position
    tokens: list[int] = []
    for draft in drafts:
        batch = np.array([*window, *draft], np.int32)
        logits = context.decode(batch, position, list(range(len(window) - 1, len(batch))))
        logits[:, ends] = -np.inf
        chosen = logits.argmax(axis=1).tolist()
        kept = 0
        while kept < len(draft) and draft[kept] == chosen[kept]:
            kept += 1
        tokens += chosen[: kept + 1]
        position += len(window) + kept
        window = [chosen[kept]]
        context.rewind(position)
    return tokens


def gap(context: Any, tokens: list[int], one: int, other: int) -> float:
    """Return logit(one) - logit(other) after `tokens`."""
    context.rewind(0)
    for position, token in enumerate(tokens):
        logits = context.decode(np.array([token], np.int32), position, [0])
    return float(logits[0, one] - logits[0, other])


def main(job_path: str, out_path: str) -> None:
    import llama_cpp as ll

    quiet = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(quiet, None)
    ll.llama_backend_init()
    results = [answer(job) for job in json.loads(Path(job_path).read_text())]
    Path(out_path).write_text(json.dumps(results))


def answer(job: dict[str, Any]) -> dict[str, Any]:
    import llama_cpp as ll

    from tools.compare.decoder import Model

    case = Case("replay", job["model"], lora=job["lora"], lora_scale=job["lora_scale"])
    with Model(case, on_device=False) as model, model.context(Settings(**job["settings"])) as context:
        vocab = ll.llama_model_get_vocab(model.pointer)
        ends = [token for token in range(model.n_vocab) if ll.llama_vocab_is_eog(vocab, token)]
        tokens = verify(context, job["prompt"], job["drafts"], ends)
        gaps = [gap(context, *asked) for asked in job["gaps"]]
    return {"tokens": tokens, "gaps": gaps}


if __name__ == "__main__":
    main(*sys.argv[1:])
