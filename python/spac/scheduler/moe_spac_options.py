"""MoE-SpAc's parameters, and every part of it that can be left out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import UnionType

from spac.errors import InputError
from spac.scheduler.cost import UnitCosts
from spac.scheduler.utility import UtilityOptions

_TIES = ("learned", "count", "recent", "none")
_KINDS: dict[str, type | UnionType] = {"int": int, "float": int | float, "bool": bool, "str": str}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "on or off", "str": "a word"}


@dataclass(frozen=True)
class MoeSpacOptions:
    """The system's parameters, and every part of it that can be left out (Table 4)."""

    levels: int = 3
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ of the boundary calibration."""
    draft_length: int = 8
    """γ that utilities and decay stand for: a step of γ+1 tokens; shorter ones count in proportion."""
    form: str = "level"
    """Of Algorithm 1: "level", "real" or "literal" (as printed); see `utility`."""
    ties: str = "learned"
    """Order within a level: "learned" (probability of use), "count" (decayed, their roots), "recent" (last
    use), "none" (as layers run)."""
    margin: float = 0.2
    """Of "learned": the gain in probability that is worth a copy within a level."""
    whole: bool = True
    """Layers are made whole where that pays (`whole_layers`): above all levels, in slots that the balancer no
    longer sees. Takes "learned" ties and the default eviction."""
    decay: float = 0.3
    """What is left of a decayed count after γ+1 tokens."""
    after_use: str = "keep"
    """"zero": an expert that was used becomes the first victim (Appendix D); "keep": it keeps its utility."""
    speculative: bool = True
    """False: "w/o SpecUE": used or not used in the last step, K = 1, and no frequencies in `ties` either:
    "learned" is then "count" of steps."""
    adapt: bool = True
    """False: "w/o AdaBC": fixed boundaries (the paper's 3 and 1 in its own forms)."""
    balance: bool = True
    """False: "w/o HetWB": τ is `threshold` for all layers."""
    threshold: int = 2
    """τ without the balancer."""
    prefetch: bool = True
    """False: "w/o SG-Prefetcher": a static set of experts."""
    evict: bool = True
    """False: "w/o SG-Evictor": experts stay until a pool is full, then the least recently used goes, whatever
    its utility."""
    strict: bool = False
    """True: Eq. 10 and 11 as printed, a threshold is infeasible unless all of its experts fit."""
    warm_up: int = 8
    """Steps over which the balancer's ratios are plain means."""
    costs: UnitCosts | None = None
    """Unit times of all layers; without them those that the engine measures, else guessed from sizes."""
    cost_by_expert: bool = True
    """False: the CPU costs a time per pair only (Eq. 7 as printed), whether measured or guessed."""

    def __post_init__(self) -> None:
        for item in fields(self):
            kind, value = str(item.type), getattr(self, item.name)
            if kind not in _KINDS:
                continue
            if not isinstance(value, _KINDS[kind]) or isinstance(value, bool) != (kind == "bool"):
                raise InputError(f"scheduler 'moe-spac': {item.name} must be {_WORDS[kind]}, not {value!r}")
        for name, known in (("ties", _TIES), ("after_use", ("keep", "zero"))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not '{getattr(self, name)}'")
        for name in ("decay", "margin"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {getattr(self, name):g}")
        if self.threshold < 1 or self.warm_up < 1:
            raise InputError("threshold and warm_up must be at least 1")
        self.estimator  # noqa: B018 (checks its own options)

    @property
    def estimator(self) -> UtilityOptions:
        return UtilityOptions(
            levels=self.levels,
            forgetting=self.forgetting,
            draft_length=self.draft_length,
            adapt=self.adapt,
            form=self.form,
        )
