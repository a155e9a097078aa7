"""Describe the machines, sizes and systems of the tables.

`torch-3090` stands for the paper's setting: a draft token takes 40 ms, and an expert that was missed is
loaded on demand. Its "CPU" is the link: a miss takes as long as the expert's copy, and copies slow nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.step_time.machine import GB, MACHINES, Machine, Model
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.sp_moe import SpMoeScheduler

TORCH = Machine(
    "torch-3090", device=900 * GB, cpu=25 * GB, dram=50.1 * GB, link=25 * GB, link_busy=25 * GB,
    dense_s=45e-3, dense_token_s=0.5e-3, launch_s=38e-3, hand_off_s=0.0, pair_share=0.0,
)  # fmt: skip
SIZES = {
    "16 bit": Model(expert_bytes=17_301_504, draft_bytes=1_300_000_000),
    "4 bit": Model(expert_bytes=4_866_048, draft_bytes=1_300_000_000),
}
"""DeepSeek-V2-Lite's experts (three matrices of 2048 x 1408), and what its 4-bit copy reads for a token."""


_LAYERS = 26  # MoE layers of DeepSeek-V2-Lite


@dataclass(frozen=True)
class Setting:
    """A machine and the sizes of the model on it."""

    name: str
    machine: Machine
    model: Model

    def scaled(self, n_layer: int) -> Setting:
        """Return the setting for a target and a draft of so many MoE layers, with times in proportion."""
        part, machine = n_layer / _LAYERS, self.machine
        model = replace(self.model, draft_bytes=round(self.model.draft_bytes * part))
        times = {"dense_s": machine.dense_s * part, "dense_token_s": machine.dense_token_s * part}
        return replace(self, machine=replace(machine, launch_s=machine.launch_s * part, **times), model=model)


SETTINGS = (
    Setting("torch-3090, 16-bit experts, misses loaded on demand", TORCH, SIZES["16 bit"]),
    Setting("rtx4090, 4-bit experts, misses computed by the CPU", MACHINES["rtx4090"], SIZES["4 bit"]),
)


class Coarse(Scheduler):
    """SP-MoE's scheduler that is asked at fewer events of a draft."""

    name = "sp-moe at fewer events"
    wants_target_routes = True

    def __init__(self, cutoff: int, *events: Event) -> None:
        """Take the cutoff layer, and the events of a draft at which it is asked."""
        self._inner = SpMoeScheduler(cutoff=cutoff)
        self.events = frozenset({Event.START, Event.VERIFY_END, *events})  # type: ignore[misc]

    def on(self, event: Event, view: View) -> Plan | None:
        plan = self._inner.on(event, view)
        self.critical = self._inner.critical
        return plan


VANILLA = "behind each layer, and the draft waits"
"""The row of the paper's vanilla prefetching: layer-triggered, with I/O synchronization (Fig. 8)."""


def ablation(cutoff: int) -> dict[str, Scheduler]:
    """Return the systems from no prefetching to SP-MoE's, all with this cutoff layer; see Fig. 12."""
    return {
        "no prefetching (LRU)": SpMoeScheduler(cutoff=0),
        "behind the draft": Coarse(cutoff, Event.DRAFT_END),
        "behind each token": Coarse(cutoff, Event.DRAFT_TOKEN, Event.DRAFT_END),
        "behind each layer (sp-moe)": SpMoeScheduler(cutoff=cutoff),
    }
