"""Simulate steps whose misses are loaded within their layer, or divided between CPU and link.

With "load", a layer's misses come over the link one after the other while the CPU does nothing, and the
device computes behind them. With "auto", the mechanism's own division is used, with the machine's true times.
The CPU reads at the rest of DRAM's bandwidth while the link copies. Copies for the plan wait meanwhile. Of
what a division brings, the experts that the plan waits for stay. The others are taken to leave again (they
pass through the slots that plans leave free), so their later hits are not counted.
"""

from __future__ import annotations

import numpy as np

from bench.program import with_misses
from bench.step_time.link import Link
from bench.step_time.simulation import Simulation, Spent
from spac import _core
from spac.errors import InputError
from spac.machine.arrays import Int32Array


class Loading(Simulation):
    """A simulation with `--miss load`. The scheduler's plan goes by recency."""

    def _block(self, layer: int, row: Int32Array, link: Link, spent: Spent) -> tuple[float, float]:
        """Run one layer's experts, all on the device, as `Simulation` does."""
        used = row > 0
        missing = np.flatnonzero(used & (link.slot_of[layer] < 0))
        copies = len(missing) * self._experts.upload_s
        device = copies + self._experts.device_expert_s * int(np.count_nonzero(used))
        if len(missing):
            link.load(layer, missing.tolist(), used)
        spent.experts += device
        return 0.0, device


class Dividing(Simulation):
    """A simulation with `--miss auto`."""

    def _block(self, layer: int, row: Int32Array, link: Link, spent: Spent) -> tuple[float, float]:
        """Run one layer's experts on both sides, as `Simulation` does."""
        costs, machine = self._experts, self._machine
        used, on_device = row > 0, link.slot_of[layer] >= 0
        hits = int(np.count_nonzero(used & on_device))
        missing = np.flatnonzero(used & ~on_device)
        missing = missing[np.argsort(-row[missing], kind="stable")]
        rows = row[missing].tolist()
        slow = costs.cpu_expert_s / machine.slowed
        units = (costs.cpu_layer_s, slow, costs.cpu_pair_s, 0.0, costs.upload_busy_s, costs.device_expert_s)
        n = _core.experts_over_link(tuple(1e9 * unit for unit in units), rows, hits, len(rows))
        device = n * costs.upload_busy_s + costs.device_expert_s * (hits + n)
        left = len(rows) - n
        cpu = costs.cpu_layer_s + slow * left + costs.cpu_pair_s * sum(rows[n:]) if left else 0.0
        alone = costs.cpu_s(sum(rows), len(rows))
        if (
            not n or max(cpu, device) >= alone
        ):  # no division is as fast as the CPU alone, while plans copy nothing
            return super()._block(layer, row, link, spent)
        spent.experts += max(cpu, device)
        link.take(layer, missing[:n].tolist())
        link.run(max(0.0, cpu - n * costs.upload_busy_s), machine.link_busy)
        return cpu, device


LOADED = ("lru", "mixtral-offloading", "adapmoe", "fate")
"""The schedulers whose plans go by recency, so that what a layer loaded stays wanted."""
MISSES = {"cpu": Simulation, "load": Loading, "auto": Dividing}
"""The simulations by the values of `--miss`."""


def simulation_of(name: str) -> tuple[str, type[Simulation]]:
    """Return the scheduler and the simulation that a name such as "lru load" means."""
    scheduler, miss = with_misses(name)
    if miss == "load" and scheduler not in LOADED:
        raise InputError(f"'{name}': loads are simulated with {', '.join(LOADED)}")
    return scheduler, MISSES[miss]
