"""Describe machines by their figures, models by their sizes, and the unit times that follow from both.

`rtx4090` has others' published measurements of such desktops (one expert of Qwen3-30B-A3B: 43 to 62 µs on the
CPU, 112 µs over PCIe 4, 3 µs on the GPU; 3.9 ms dense, which includes llama.cpp's own work on the host; CPU
and link together 65 GB/s of DRAM, of which the link keeps 21.6). The other machines are assumptions: data
sheets, and the same shares of them as on the first machine. The fixed times of a layer and of a step were
measured: the hand-off on an H100, the others with narrow models on a Zen 4 (results/step-host-zen4.txt).
"""

from __future__ import annotations

from dataclasses import dataclass

from spac.costs import Costs, ExpertCosts

GB = 1e9


@dataclass(frozen=True)
class Model:
    """A target and its draft, as far as their sizes determine the time."""

    expert_bytes: int
    draft_bytes: int  # read for every drafted token


@dataclass(frozen=True)
class Known:
    """Costs as a profile measured them, which stay the same (`spac.costs.LiveCosts`)."""

    costs: Costs


@dataclass(frozen=True)
class Machine:
    """A machine's bandwidths in bytes per second, and times in seconds."""

    name: str
    device: float
    """Bandwidth at which the device's kernels read weights."""
    cpu: float
    """Bandwidth at which the CPU reads weights while it computes, with nothing else going on."""
    dram: float
    """Bandwidth of CPU and link together."""
    link: float
    """Bandwidth of uploads from pinned memory, alone."""
    link_busy: float
    """Bandwidth of the same uploads while the CPU reads as well."""
    dense_s: float
    """Seconds of a verification without its experts: attention, routers, head, launches."""
    dense_token_s: float
    """Seconds that each further token of a verification adds to it."""
    launch_s: float
    """Seconds of a draft token without reading its weights."""
    step_s: float = 0.4e-3
    """Seconds that the host adds to a step beyond `dense_s`: loop, statistics, sampling, the split."""
    hand_off_s: float = 16e-6
    """Seconds of the host's round trip, in a layer that leaves anything to the CPU."""
    lane_s: float = 15e-6
    """Seconds of the CPU's part of a layer without any expert: starting the threads, and their waits."""
    pair_share: float = 0.1
    """The arithmetic of one (token, expert) on the CPU, as a share of reading the expert. Both sides get this
    value. llama.cpp's kernels, which unpack weights for every token, take more (bench/expert_rows.py)."""

    def __post_init__(self) -> None:
        if not 0 < self.link_busy < self.dram or self.cpu > self.dram:
            raise ValueError(f"machine '{self.name}': the CPU and the link each read less than DRAM gives")

    @property
    def slowed(self) -> float:
        """Return the share of the CPU's reading speed that is left while uploads run."""
        return min(1.0, (self.dram - self.link_busy) / self.cpu)

    def experts(self, model: Model) -> ExpertCosts:
        """Return the expert costs that a profile would measure on the machine."""
        read = model.expert_bytes / self.cpu
        return ExpertCosts(
            cpu_layer_s=self.lane_s,
            cpu_expert_s=read,
            cpu_pair_s=read * self.pair_share,
            cpu_pair_only_s=read,
            device_expert_s=model.expert_bytes / self.device,
            upload_s=model.expert_bytes / self.link_busy,
        )

    def draft_token_s(self, model: Model) -> float:
        """Return the seconds of one drafted token."""
        return self.launch_s + model.draft_bytes / self.device

    def dense(self, n_tokens: int) -> float:
        """Return the seconds of the dense part of a verification of `n_tokens` tokens."""
        return self.dense_s + self.dense_token_s * (n_tokens - 1)

    def costs(self, model: Model, n_tokens: int = 16) -> Costs:
        """Return all costs, as schedulers get them. `verify_s` has no experts in it, because no scheduler
        reads it."""
        dense = tuple(self.dense(n) for n in range(1, n_tokens + 1))
        draft = self.draft_token_s(model)
        return Costs((self.experts(model),), 0.0, draft, dense, dense, self.hand_off_s)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("rtx4090", device=930 * GB, cpu=60 * GB, dram=65 * GB, link=25 * GB, link_busy=21.6 * GB,
                dense_s=3.9e-3, dense_token_s=50e-6, launch_s=0.5e-3),
        Machine("rtx3060", device=330 * GB, cpu=42 * GB, dram=45 * GB, link=12 * GB, link_busy=10.5 * GB,
                dense_s=5.5e-3, dense_token_s=150e-6, launch_s=0.6e-3),
        Machine("h200", device=4300 * GB, cpu=140 * GB, dram=150 * GB, link=55 * GB, link_busy=48 * GB,
                dense_s=3.0e-3, dense_token_s=20e-6, launch_s=0.8e-3, step_s=1.0e-3),
    )
}  # fmt: skip
