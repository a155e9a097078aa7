"""Let a governor decide on recorded steps: which lengths it chooses, and how long the steps would take."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bench.governor.live import FIXED, interval
from spac.governor import RooflineGovernor


class Recorded:
    """The steps of one prompt, by fixed length and by the token at which they began.

    A draft of length k at a token is taken to be accepted as in the run at length k, at the step that began
    nearest. A length that was not run uses the step of the next longer length, cut to k tokens. Its time is
    interpolated between its neighbours at that token.
    """

    def __init__(self, runs: dict[int, list[list[int]]], n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self._steps = {k: np.array(steps, np.int64) for k, steps in runs.items()}
        self._begins = {
            k: np.concatenate([[0], np.cumsum(steps[:, 2] + 1)[:-1]]) for k, steps in self._steps.items()
        }

    def step(self, place: int, k: int) -> tuple[int, int, float, float]:
        """Return (drafted, accepted, seconds of drafting, seconds) of a step that begins at token `place`."""
        above = min(each for each in FIXED if each >= k)
        _, n, accepted, draft, took = self._at(place, above)
        if above != k:
            below = max(each for each in FIXED if each < k)
            share = (k - below) / (above - below)
            _, _, _, draft_below, took_below = self._at(place, below)
            n, accepted = min(n, k), min(accepted, k)
            draft = draft_below + share * (draft - draft_below)
            took = took_below + share * (took - took_below)
        return int(n), int(accepted), draft / 1e9, took / 1e9

    def _at(self, place: int, k: int) -> np.ndarray:
        begins = self._begins[k]
        i = int(np.searchsorted(begins, place))
        if i == len(begins) or (i and place - begins[i - 1] <= begins[i] - place):
            i -= 1
        return np.asarray(self._steps[k][i])

    def fixed(self, k: int) -> float:
        """Return the recorded seconds of the text at length k, without the time after the last token."""
        return self._run(lambda _room: k, lambda *_observed: None)

    def governed(self, governor: RooflineGovernor, chosen: Counter[int]) -> float:
        """Return the seconds of the text under the governor. `chosen` counts its choices."""

        def choose(room: int) -> int:
            k = governor.choose(room)
            chosen[k] += 1
            return k

        return self._run(choose, governor.observe)

    def _run(self, choose: Any, observe: Any) -> float:
        place, total = 0, 0.0
        while place < self.n_tokens:
            observed = self.step(place, choose(self.n_tokens - place - 1))
            observe(*observed)
            place += observed[1] + 1
            total += observed[3]
        return total


def against_fixed(data: dict[str, Any]) -> dict[str, Any]:
    """Compare one governor over all prompts of a set, in their order, with the best of the fixed lengths."""
    prompts: dict[int, dict[int, list[list[int]]]] = {}
    for run in sorted(data["runs"], key=lambda run: -run["seconds"]):  # the fastest round is kept
        if run["length"] in FIXED:
            prompts.setdefault(run["prompt"], {})[run["length"]] = run["steps"]
    texts = [Recorded(runs, data["tokens"]) for _, runs in sorted(prompts.items())]
    fixed = {k: sum(text.fixed(k) for text in texts) for k in FIXED}
    governor, chosen = RooflineGovernor(max(FIXED), clock=lambda: 0.0), Counter[int]()
    governed = [text.governed(governor, chosen) for text in texts]
    seconds = sum(governed)
    best = min(fixed, key=lambda k: fixed[k])
    n_steps = sum(chosen.values())
    return {
        "best": best,
        "ratio": interval(np.array([t.fixed(best) / took for t, took in zip(texts, governed, strict=True)])),
        "ratio_of_sums": fixed[best] / seconds,
        "seconds": {str(k): took for k, took in fixed.items()} | {"governor": seconds},
        "chosen": {str(k): n / n_steps for k, n in sorted(chosen.items())},
    }
