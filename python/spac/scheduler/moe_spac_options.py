"""The parameters of MoE-SpAc, and a switch for every part that can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from spac.errors import InputError
from spac.scheduler.cost import UnitCosts
from spac.scheduler.options import LogisticOptions, Options
from spac.scheduler.utility import UtilityOptions

_TIES = ("learned", "count", "recent", "none")


@dataclass(frozen=True)
class MoeSpacOptions(Options):
    """The parameters of the system, and a switch for every part that can be left out (Table 4)."""

    scheduler = "moe-spac"
    presets = MappingProxyType(
        {
            "paper": {
                "form": "literal", "boundaries": "fixed", "levels": 4, "ties": "none", "whole": False,
                "strict": True, "cost_by_expert": False, "after_use": "zero",
            }
        }
    )  # fmt: skip
    """The preset is the system as printed, without what was added. Rows of Table 4 are further options."""

    levels: int = 3
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ: the share of the newest change in the boundary calibration."""
    draft_length: int = 8
    """γ to which utilities and decay refer: a step of γ+1 tokens. Shorter steps count in proportion."""
    form: str = "level"
    """The form of Algorithm 1: "level", "real" or "literal" (as printed); see `utility`."""
    boundaries: str = "half"
    """The boundaries at the start in the printed forms: "half" is floor(γ/2), "fixed" is 3 and 1."""
    ties: str = "learned"
    """The order within a level.

    "learned": by probability of use. "count": by decayed counts of roots. "recent": by last use. "none": in
    the order in which layers run.
    """
    margin: float | str = LogisticOptions.margin
    """The gain in probability that is worth a copy within a level, for "learned" ties, or "auto"."""
    whole: bool = True
    """True: layers are made whole where that pays (`whole_layers`).

    Whole layers stand above all levels, in slots that the balancer no longer sees. This takes "learned" ties
    and the default eviction.
    """
    decay: float = 0.3
    """The part of a decayed count that is left after γ+1 tokens."""
    after_use: str = "keep"
    """The utility of an expert after use: "keep", or "zero", which makes it the first victim (Appendix D)."""
    speculative: bool = True
    """False: "w/o SpecUE". The utility says whether the last step used the expert, and K = 1.

    `ties` has no frequencies either: "learned" is then "count" of steps.
    """
    adapt: bool = True
    """False: "w/o AdaBC". The boundaries are fixed (the paper's 3 and 1 in its own forms)."""
    balance: bool = True
    """False: "w/o HetWB". τ is `threshold` for all layers."""
    threshold: int = 2
    """τ without the balancer."""
    prefetch: bool = True
    """False: "w/o SG-Prefetcher". A static set of experts is resident."""
    evict: bool = True
    """False: "w/o SG-Evictor". Experts stay until a pool is full.

    Then the least recently used expert is evicted, whatever its utility.
    """
    strict: bool = False
    """True: Eq. 10 and 11 as printed. A threshold is feasible only if all of its experts fit."""
    warm_up: int = 8
    """The number of steps over which the balancer's ratios are plain means."""
    costs: UnitCosts | None = None
    """The unit times of all layers. None: the engine's measured times, otherwise guesses from sizes."""
    cost_by_expert: bool = True
    """False: the CPU costs a time per pair only (Eq. 7 as printed), measured or guessed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("ties", _TIES), ("after_use", ("keep", "zero"))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not '{getattr(self, name)}'")
        self.check_shares("decay")
        self.check_gain("margin")
        if self.threshold < 1 or self.warm_up < 1:
            raise InputError("threshold and warm_up must be at least 1")
        self.estimator  # noqa: B018 (checks its own options)

    @property
    def estimator(self) -> UtilityOptions:
        """The options of the utility estimator. Raise InputError for values out of range."""
        return UtilityOptions(
            levels=self.levels,
            forgetting=self.forgetting,
            draft_length=self.draft_length,
            adapt=self.adapt,
            boundaries=self.boundaries,
            form=self.form,
        )
