"""What can be set, once: name, type, default, range and the words that explain it.

The dataclasses check themselves, and the command line is made from the same fields (`spac.run`), so that a
range is stated in one place.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from spac import scheduler as schedulers
from spac.errors import InputError
from spac.stream_batch import StreamBatch
from spac.vram import VramLimit

DRAFT_TYPES = (
    "none",
    "draft-simple",
    "draft-mtp",
    "draft-eagle3",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
"""llama.cpp's names of the ways to draft. Those called draft-… have a model; draft-mtp can do with the
target's own extra layers."""


GOVERNORS = ("roofline", "fixed")
FIXED_LENGTH = 8
"""Tokens drafted per step where nothing is said and nobody chooses."""
LONGEST = 16
"""Tokens that a governor may have drafted per step where nothing is said; llama.cpp's default too."""


@dataclass(frozen=True)
class Range:
    """The values that a number may take, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"at least {self.low}"
        return f"{self.low} to {self.high}"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Slots:
    """How many experts the device holds: a share of all experts, a count, or as many as fit (both None)."""

    share: float | None = None
    count: int | None = None

    ACCEPTED = "'auto', a count (64), or a share of all experts (25% or 0.25)"

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InputError(f"slots: the share {self.share:g} is not within 0 to 1")
        if self.count is not None and self.count < 0:
            raise InputError(f"slots: the count {self.count} is negative")

    @property
    def is_auto(self) -> bool:
        return self.share is None and self.count is None

    def of(self, n_experts: int) -> int:
        """The number of slots for a model with `n_experts` experts in all its layers. Not for auto."""
        wanted = round(self.share * n_experts) if self.share is not None else self.count or 0
        return min(wanted, n_experts)

    @classmethod
    def parse(cls, value: Slots | str | int | float) -> Slots:
        """From what a user writes. Integers are counts; numbers with a point or a percent sign are shares."""
        if isinstance(value, Slots):
            return value
        if isinstance(value, int):
            return cls(count=value)
        if isinstance(value, float):
            return cls(share=value)
        text = value.strip().lower()
        if text == "auto":
            return cls()
        try:
            if text.endswith("%"):
                return cls(share=float(text[:-1]) / 100)
            return cls(share=float(text)) if "." in text else cls(count=int(text))
        except InputError:
            raise
        except ValueError:
            raise InputError(f"slots: '{value}' is none of {cls.ACCEPTED}") from None

    def __str__(self) -> str:
        if self.is_auto:
            return "auto"
        return f"{self.share:.6g}" if self.share is not None else str(self.count)


def option(
    default: Any,
    help: str,
    *flags: str,
    range: Range | None = None,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> Any:
    """A field that is also an option of the command line; the first flag is the one that messages name."""
    metadata = {"help": help, "flags": flags, "range": range, "choices": choices, "metavar": metavar}
    return field(default=default, metadata=metadata)


class _Checked:
    """Checks every field against its declared range and choices."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            self._check(item)

    def _check(self, item: Field[Any]) -> None:
        value = getattr(self, item.name)
        limits, choices = item.metadata.get("range"), item.metadata.get("choices")
        if limits is not None and value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or value not in limits:
                raise InputError(f"{item.name} must be {limits}, not {value!r}")
            if item.type == "int" and not isinstance(value, int):
                raise InputError(f"{item.name} must be a whole number, not {value!r}")
        if choices is not None and value is not None:
            for each in _names(value):
                if each not in choices:
                    raise InputError(f"{item.name}: '{each}' is none of {', '.join(choices)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """From keys and values, as of a settings file. An unknown key is an InputError naming the known."""
        known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                raise InputError(f"{cls.__name__} has no '{key}'{hint} It knows: {', '.join(known)}")
        return cls(**values)


COUNT = Range(0, 2**31 - 1)
LOOK_BACK = Range(-1, 2**31 - 1)
CONTEXT = Range(
    0, 2**24
)  # more than any model knows; the library makes lists of this length before it allocates
PROBABILITY = Range(0, 1)
DRAFT = Range(0, 63)


@dataclass(frozen=True)
class SamplingConfig(_Checked):
    """How the next token is chosen: llama.cpp's samplers, names and defaults. `temp=0` is greedy."""

    seed: int | None = option(
        None, "seed of the sampler; without it, or with -1, a random one, which is reported", "--seed", "-s",
        range=Range(-1, 2**32 - 2),
    )  # fmt: skip
    temp: float = option(0.8, "temperature; 0 is greedy", "--temp", "--temperature", range=Range(0, 100))
    top_k: int = option(40, "keep the k likeliest tokens; 0 keeps all", "--top-k", range=COUNT)
    top_p: float = option(
        0.95, "keep the likeliest tokens up to this probability", "--top-p", range=PROBABILITY
    )
    min_p: float = option(0.05, "drop tokens below this share of the likeliest", "--min-p", range=PROBABILITY)
    typ_p: float = option(
        1.0, "locally typical sampling; 1 is off", "--typical", "--typical-p", range=PROBABILITY
    )
    repeat_penalty: float = option(
        1.0, "penalty on repeated tokens; 1 is off", "--repeat-penalty", range=Range(0, 100)
    )
    repeat_last_n: int = option(
        64, "tokens that the penalties look back over; -1 is the context", "--repeat-last-n", range=LOOK_BACK
    )
    presence_penalty: float = option(
        0.0, "penalty on tokens seen; 0 is off", "--presence-penalty", range=Range(-2, 2)
    )
    frequency_penalty: float = option(
        0.0, "penalty by how often a token was seen; 0 is off", "--frequency-penalty", range=Range(-2, 2)
    )
    top_n_sigma: float = option(
        -1.0, "keep tokens within this many standard deviations of the likeliest; -1 is off",
        "--top-n-sigma", "--top-nsigma", range=Range(-1, 100),
    )  # fmt: skip
    xtc_probability: float = option(
        0.0, "chance to exclude the top choices; 0 is off", "--xtc-probability", range=PROBABILITY
    )
    xtc_threshold: float = option(
        0.1, "probability of a top choice; above 0.5 is off", "--xtc-threshold", range=PROBABILITY
    )
    dynatemp_range: float = option(
        0.0, "range of the dynamic temperature; 0 is off", "--dynatemp-range", range=Range(0, 100)
    )
    dynatemp_exponent: float = option(
        1.0, "exponent of the dynamic temperature", "--dynatemp-exp", range=Range(0, 100)
    )
    dry_multiplier: float = option(
        0.0, "DRY penalty on repeated sequences; 0 is off", "--dry-multiplier", range=Range(0, 100)
    )
    dry_base: float = option(1.75, "base of the DRY penalty", "--dry-base", range=Range(1, 100))
    dry_allowed_length: int = option(
        2, "longest repetition without a DRY penalty", "--dry-allowed-length", range=COUNT
    )
    dry_penalty_last_n: int = option(
        64, "tokens that DRY looks back over; -1 is the context", "--dry-penalty-last-n", range=LOOK_BACK
    )
    mirostat: int = option(0, "Mirostat version; 0 is off", "--mirostat", range=Range(0, 2))
    mirostat_lr: float = option(0.1, "Mirostat's learning rate", "--mirostat-lr", range=PROBABILITY)
    mirostat_ent: float = option(5.0, "Mirostat's target entropy", "--mirostat-ent", range=Range(0, 100))
    grammar: str = option("", "GBNF grammar that the text must follow", "--grammar")
    ignore_eos: bool = option(False, "never choose an end token", "--ignore-eos")


@dataclass(frozen=True)
class EngineConfig(_Checked):
    """What an `Engine` runs and on what. Only `target` has no default."""

    target: Path | str = option(  # noqa: RUF009
        None, "GGUF of the model (default: the bundled demo pair)", "--target", "--model", "-m"
    )
    draft: Path | str | None = option(  # noqa: RUF009
        None,
        "GGUF of the draft model",
        "--draft",
        "--draft-model",
        "--model-draft",
        "-md",
        "--spec-draft-model",
    )
    draft_type: tuple[str, ...] | str | None = option(
        None, "how to draft (default: draft-simple with a draft model, else none)",
        "--draft-type", "--spec-type", choices=DRAFT_TYPES,
    )  # fmt: skip
    governor: str | None = option(
        None, "what chooses the draft length: roofline, every step anew from measured costs; fixed, nothing "
        "(default: roofline, but fixed with --draft-length)", "--governor", choices=GOVERNORS, metavar="NAME",
    )  # fmt: skip
    draft_length: int | None = option(
        None, f"tokens drafted per step, always (default with --governor fixed: {FIXED_LENGTH}); "
        "0 turns speculation off", "--draft-length", range=DRAFT,
    )  # fmt: skip
    draft_max: int | None = option(
        None, f"tokens drafted per step at most (default: {LONGEST}); 0 turns speculation off",
        "--draft-max", "--draft-n", "--spec-draft-n-max", range=DRAFT,
    )  # fmt: skip
    latency_budget: float | None = option(
        None, "milliseconds that no step, and so no gap between tokens, is to exceed, as far as the draft "
        "length can see to it; for the first token, its prompt included",
        "--latency-budget", range=Range(0, 1e6), metavar="MS",
    )  # fmt: skip
    deterministic: bool = option(
        False, "equal runs give equal text: nothing that timing decides, such as the draft length or when "
        "experts arrive, may change it; slower", "--deterministic",
    )  # fmt: skip
    draft_min: int = option(
        0,
        "a shorter draft is not verified",
        "--draft-min",
        "--draft-n-min",
        "--spec-draft-n-min",
        range=Range(0, 63),
    )
    draft_p_min: float = option(
        0.0, "stop drafting at a token less probable than this", "--draft-p-min", "--spec-draft-p-min",
        range=PROBABILITY,
    )  # fmt: skip
    slots: Slots | str | int | float = option(  # noqa: RUF009
        "auto", f"experts that the device holds: {Slots.ACCEPTED}", "--slots", metavar="N|SHARE|auto"
    )
    vram_limit: VramLimit | str | int | float | None = option(  # noqa: RUF009
        None, "memory of the device that spac takes at most (weights, contexts, slots and the rest), as if "
        f"the card had no more: {VramLimit.ACCEPTED}", "--vram-limit", metavar="SIZE|SHARE",
    )  # fmt: skip
    scheduler: str | schedulers.Scheduler = option(  # noqa: RUF009
        "logistic",
        f"what decides which experts are resident: {', '.join(schedulers.names())}; with options as in "
        "moe-spac:levels=8,balance=off",
        "--scheduler",
        metavar="NAME[:KEY=VALUE,...]",
    )
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    device: str = option(
        "auto", "auto, a device's name (CUDA0), stand-in, or cpu for plain llama.cpp", "--device", "-dev"
    )
    threads: int = option(
        0, "CPU threads; 0 is one per physical core", "--threads", "-t", range=Range(0, 512)
    )
    ctx: int | None = option(
        None, "context in tokens; 0 is what the model was trained for (default: that, but 4096 at most)",
        "--ctx", "--ctx-size", "-c", range=CONTEXT,
    )  # fmt: skip
    batch: int = option(
        2048, "tokens of a prompt evaluated at once", "--batch", "--batch-size", "-b", range=Range(1, 2**20)
    )
    ubatch: int = option(
        512, "tokens of one graph", "--ubatch", "--ubatch-size", "-ub", range=Range(1, 2**16)
    )
    stream_batch: StreamBatch | str | int | None = option(  # noqa: RUF009
        None, "prompts: graphs of so many tokens and more have all experts brought together on the device "
        "and are computed there; 0: never; auto: from where measured costs say that it is faster (default: "
        "auto, on the stand-in never)",
        "--stream-batch", metavar="N|auto",
    )  # fmt: skip
    lookahead: int | None = option(
        None, "in every step, each layer's input is shown to the router of the layer so many behind it, and "
        "what that would choose is loaded first; 0: not (default: 3; on the stand-in, with "
        "--deterministic and with the scheduler static 0)",
        "--lookahead", range=Range(0, 64),
    )  # fmt: skip
    state: Path | str | None = option(  # noqa: RUF009
        None, "start warm from this file, and save there at the end what the scheduler learned", "--state"
    )
    timeline: Path | str | None = option(  # noqa: RUF009
        None, "write a trace of what ran when, for ui.perfetto.dev", "--timeline"
    )
    model_params: Mapping[str, Any] = field(default_factory=dict)
    """Fields of llama_model_params to set beside the above, by llama.cpp's names."""
    context_params: Mapping[str, Any] = field(default_factory=dict)
    """Fields of llama_context_params to set beside the above, by llama.cpp's names."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.target:
            raise InputError("no target: name the GGUF file of a model")
        if isinstance(self.scheduler, str):
            schedulers.make(self.scheduler, **self.scheduler_options)  # refused now rather than after loading
        self._check_draft()
        for name in self.draft_types:
            if name.startswith("draft-") and name != "draft-mtp" and self.draft is None:
                raise InputError(f"draft-type {name} needs a draft model: add --draft FILE")
        Slots.parse(self.slots)
        if self.vram_limit is not None:
            VramLimit.parse(self.vram_limit)
        if self.stream_batch is not None:
            StreamBatch.parse(self.stream_batch)
        if self.lookahead and self.deterministic:
            raise InputError("lookahead loads while a step runs, which --deterministic excludes")

    def _check_draft(self) -> None:
        if self.draft_length is not None and self.draft_max is not None:
            raise InputError("draft_length is every draft's, draft_max the longest one's: give one of them")
        if self.governor == "roofline" and self.draft_length is not None:
            raise InputError(
                "draft_length fixes the length that the governor 'roofline' would choose: "
                "give --draft-max for its longest, or --governor fixed"
            )
        if self.governor == "roofline" and self.deterministic:
            raise InputError("the governor 'roofline' goes by times, which --deterministic excludes")
        if self.latency_budget is not None and not self.is_governed:
            raise InputError(
                "a latency_budget needs a draft length that is chosen while it runs: "
                "leave out draft_length, governor and deterministic"
            )
        if self.draft_min > self.longest_draft:
            raise InputError(f"draft_min {self.draft_min} is more than draft_length {self.longest_draft}")

    @property
    def is_governed(self) -> bool:
        """Whether the draft length is chosen while it runs (governor "roofline")."""
        if self.governor is not None:
            return self.governor == "roofline"
        return self.draft_length is None and not self.deterministic

    @property
    def longest_draft(self) -> int:
        """Tokens drafted per step at most; where the length is fixed, always."""
        if self.draft_length is not None:
            return self.draft_length
        if self.draft_max is not None:
            return self.draft_max
        return LONGEST if self.is_governed else FIXED_LENGTH

    @property
    def draft_types(self) -> tuple[str, ...]:
        """The ways to draft, resolved: empty without speculation."""
        if self.longest_draft == 0:
            return ()
        if self.draft_type is None:
            return ("draft-simple",) if self.draft is not None else ()
        return tuple(name for name in _names(self.draft_type) if name != "none")


def _names(value: tuple[str, ...] | str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
