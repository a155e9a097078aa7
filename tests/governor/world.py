"""Worlds with a known optimum. Acceptance by position and times by length are drawn with a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class World:
    """Tokens and seconds of a step at every draft length."""

    accept: Callable[[int], float]  # p_j of position j = 1, 2, …
    draft: Callable[[int], float]  # seconds of drafting n > 0 tokens
    verify: Callable[[int], float]  # seconds of verifying b tokens
    go_on: Callable[[int], float] = lambda j: 1.0  # chance that the draft has a j-th token
    noise: float = 0.05  # standard deviation of the logarithm of a time
    spikes: float = 0.03  # chance of an interruption, which makes a step five times as long
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def tokens(self, k: int) -> float:
        """Return the expected tokens of a step."""
        total, chance = 1.0, 1.0
        for j in range(1, k + 1):
            chance *= self.accept(j) * self.go_on(j)
            total += chance
        return total

    def seconds(self, k: int) -> float:
        """Return the expected seconds of a step, without noise."""
        total, chance = 0.0, 1.0
        for n in range(k + 1):
            stop = 1 - self.go_on(n + 1) if n < k else 1.0
            total += chance * stop * self._time(n, drafts=k > 0)
            chance *= 1 - stop
        return total

    def theta(self, k: int) -> float:
        return self.tokens(k) / self.seconds(k)

    def best(self, longest: int) -> float:
        """Return Θ of the best fixed length."""
        return max(self.theta(k) for k in range(longest + 1))

    def _time(self, n: int, drafts: bool) -> float:
        return (self.draft(n) if drafts else 0.0) + self.verify(n + 1)

    def step(self, k: int) -> tuple[int, int, float, float]:
        """Return (drafted, accepted, seconds of drafting, seconds) of one step."""
        rng, n = self.rng, 0
        while n < k and rng.random() < self.go_on(n + 1):
            n += 1
        accepted = 0
        while accepted < n and rng.random() < self.accept(accepted + 1):
            accepted += 1
        factor = float(np.exp(rng.normal(0, self.noise))) * (5 if rng.random() < self.spikes else 1)
        draft = self.draft(n) if k else 0.0
        return n, accepted, draft * factor, (draft + self.verify(n + 1)) * factor


def run(governor, world: World, steps: int) -> list[int]:
    """Let the governor run the world. Return the lengths that it chose."""
    chosen = []
    for _ in range(steps):
        k = governor.choose(10**6)
        governor.observe(*world.step(k))
        chosen.append(k)
    return chosen


def share_of_best(world: World, chosen: list[int], longest: int) -> float:
    """Return the expected throughput of the lengths chosen, as a share of the best fixed length's."""
    times = Counter(chosen)
    tokens = sum(n * world.tokens(k) for k, n in times.items())
    seconds = sum(n * world.seconds(k) for k, n in times.items())
    return tokens / seconds / world.best(longest)
