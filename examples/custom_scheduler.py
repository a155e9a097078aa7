"""Define a scheduler that keeps the experts that were used most since the start, and compare it with `lru`.

python examples/custom_scheduler.py [MODEL [DRAFT]]
"""

from __future__ import annotations

import sys

import numpy as np

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.ewma import best_per_pool


class MostUsed(Scheduler):
    """Counts uses. The engine calls it at the start and after each verification."""

    name = "most-used"

    def on(self, event: Event, view: View) -> Plan | None:
        """Return a priority for every expert. An expert is wanted if it reaches its layer's threshold."""
        if event == Event.START:
            self.uses = np.zeros_like(view.demand)  # int32 [layer, expert]
        # The arrays of a view are valid during the call only, and a plan keeps its arrays: make a new array.
        self.uses = self.uses + view.demand
        # Layers with equal experts share a pool of slots. Each pool wants as many experts as it has slots.
        return Plan(self.uses, best_per_pool(self.uses, view))


def main(model: str, draft: str | None) -> None:
    """Generate from the same prompt with two schedulers."""
    sampling = SamplingConfig(temp=0)
    config = EngineConfig(target=model, draft=draft, slots="25%", scheduler=MostUsed(), sampling=sampling)
    with Engine(config) as engine:
        if engine.experts is None:
            sys.exit("a scheduler needs a device: without a GPU, set SPAC_DEVICE=simulated")
        for scheduler in (None, "lru"):
            if scheduler is not None:
                engine.set_scheduler(scheduler)  # from the next step on; resident experts stay
            generation = engine.generate(demo.PROMPT, max_tokens=64)
            for _ in generation:
                pass
            stats = generation.stats
            rate = "-" if stats.hit_rate is None else f"{stats.hit_rate:.1%}"
            print(f"{scheduler or MostUsed.name}: hit rate {rate}, {stats.uploads} uploads")


if __name__ == "__main__":
    paths = sys.argv[1:] or [str(demo.TARGET), str(demo.DRAFT)]
    main(paths[0], paths[1] if len(paths) > 1 else None)
