"""The options of an engine: name, type, default, range and help text of each.

The dataclasses check themselves. Programs make their command lines from the same fields (`spac.run`), so that
a range is stated in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac.config.context import CONTEXT_GROUP, ContextConfig
from spac.config.fields import Parsed, Range, documented, names_in, option
from spac.config.remote import addresses, check, layer_counts, slot_devices
from spac.config.sampling import SamplingConfig
from spac.config.values import GraphTokens, Slots, StreamBatch, VramLimit
from spac.errors import InputError
from spac.scheduler.choice import SchedulerChoice
from spac.scheduler.choice import names as scheduler_names

if TYPE_CHECKING:
    from spac.scheduler.base import Scheduler

DRAFT_TYPES = (
    "auto", "none", "draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "self",
)  # fmt: skip
"""llama.cpp's names of the ways to draft, and those in which the target itself drafts.

Those called draft-… need a draft model. draft-mtp can also use the target's own extra layers. With "self",
the target drafts with low-bit copies of its experts. "auto" is draft-simple with a draft model, and draft-mtp
for a target with such layers. With both, it is what was faster in earlier runs on this machine.
"""

FIXED_LENGTH = 8
"""The default number of tokens drafted per step where the governor may not choose it."""
LONGEST = 16
"""The default limit of the tokens that a governor drafts per step. llama.cpp's default is the same."""
LONGEST_MTP = 3
"""The default limit of draft-mtp. Such layers are trained for one to three tokens."""
DEFAULT_CONTEXT = 4096
"""The default limit of a context's tokens."""
DEFAULT_LOOKAHEAD = 3
"""The default number of layers that routers look ahead.

Nearer layers are predicted better, but their experts arrive too late (bench/README.md).
"""
MISS_WORDS = ("cpu", "load")
"""The values of `miss`."""
STATE_WORDS = ("auto", "off")
"""The values of `state` that are no files."""

IMAGES_GROUP = "images"
"""The heading of options for images."""
CONTEXT = Range(0, 2**24)
"""Tokens of a context. The limit is above every model's; the library allocates lists of this length."""
IMAGE_TOKENS = Range(1, 2**16)
"""Tokens of an image."""
PARALLEL = Range(-1, 64)
"""Generations at once; -1 lets the configuration decide. More would wait too long."""
AUTO_PARALLEL = 4
"""The most generations at once where the configuration decides, as in llama.cpp's server."""
LEAST_SHARE = 512
"""The least tokens of a context for each of its generations, where the configuration decides their number."""
DRAFT = Range(0, 63)
"""Tokens drafted per step."""


def _chosen(scheduler: SchedulerChoice | Scheduler | str) -> SchedulerChoice | Scheduler:
    """Return the choice that a text means; other values are returned unchanged."""
    return SchedulerChoice.parse(scheduler) if isinstance(scheduler, str) else scheduler


@documented
@dataclass(frozen=True)
class EngineConfig(ContextConfig):
    """The options of an `Engine`. `target` has to be given: only programs have a default for it.

    `ContextConfig` declares the options of contexts and models, by llama.cpp's names. The texts below are
    those of the command line. Its options have the fields' names, with hyphens.
    """

    target: Path | str = option(
        None, "GGUF of the model (default: the bundled demo pair)", "--target", "--model", "-m"
    )
    draft: Path | str | None = option(
        None, "GGUF of the draft model",
        "--draft", "--draft-model", "--model-draft", "-md", "--spec-draft-model",
    )  # fmt: skip
    draft_type: Parsed[tuple[str, ...] | None, tuple[str, ...] | str | None] = option(
        "auto", "how to draft (default: auto, which is draft-simple with a draft model, and draft-mtp if the "
        "target has layers for it that have paid on this machine so far; with both, the faster one of "
        "earlier runs here; else none)",
        "--draft-type", "--spec-type", choices=DRAFT_TYPES, parse=names_in,
    )  # fmt: skip
    draft_length: int | None = option(
        None, "tokens drafted per step, always (default: the governor chooses for each step from measured "
        f"costs; with --deterministic {FIXED_LENGTH}); 0 turns speculation off", "--draft-length",
        range=DRAFT,
    )  # fmt: skip
    draft_max: int | None = option(
        None, f"tokens drafted per step at most (default: {LONGEST}, but less than --batch, and "
        f"{LONGEST_MTP} with draft-mtp); 0 turns "
        "speculation off", "--draft-max", "--draft-n", "--spec-draft-n-max", range=DRAFT,
    )  # fmt: skip
    latency_budget: float | None = option(
        None, "target for the longest time between two tokens, in milliseconds; drafts are kept short enough "
        "to meet it; for the first token, the prompt counts too",
        "--latency-budget", range=Range(0, 10**6), metavar="MS",
    )  # fmt: skip
    deterministic: bool = option(
        False, "equal runs give equal text: nothing that timing decides, such as the draft length or when "
        "experts arrive, may change it; slower", "--deterministic",
    )  # fmt: skip
    draft_min: int = option(
        0, "a shorter draft is not verified", "--draft-min", "--draft-n-min", "--spec-draft-n-min",
        range=DRAFT,
    )  # fmt: skip
    draft_p_min: float = option(
        0.0, "stop drafting at a token less probable than this, where a draft model or the target itself "
        "drafts", "--draft-p-min", "--spec-draft-p-min", range=Range(0, 1),
    )  # fmt: skip
    slots: Parsed[Slots, Slots | str | int | float] = option(
        "auto", f"experts in slots on the GPU: {Slots.ACCEPTED}", "--slots", metavar="N|SHARE|auto",
        parse=Slots.parse,
    )  # fmt: skip
    vram_limit: Parsed[VramLimit | None, VramLimit | str | int | float | None] = option(
        None, "GPU memory that spac takes at most (weights, contexts, slots and the rest), as if the GPU had "
        f"no more: {VramLimit.ACCEPTED}", "--vram-limit", metavar="SIZE|SHARE", parse=VramLimit.parse,
    )  # fmt: skip
    scheduler: Parsed[SchedulerChoice | Scheduler, SchedulerChoice | Scheduler | str] = option(
        "logistic", f"what decides which experts are in slots: {', '.join(scheduler_names())}; with options "
        "as in moe-spac:levels=8,balance=off", "--scheduler", metavar="NAME[:KEY=VALUE,...]", parse=_chosen,
    )  # fmt: skip
    scheduler_options: Mapping[str, Any] = option(dict, "options of the scheduler, by name")
    keeps_split: str = option(
        "", "why a model whose experts all fit keeps the split, for a note; empty if it may run without"
    )
    cpu_expert_layers: int | None = option(
        None, "layers whose experts stay on the CPU, without the split, as by llama.cpp's --n-cpu-moe, for "
        "comparisons; None means the split",
    )  # fmt: skip
    device: str = option(
        "auto", "auto (all GPUs, or else the CPU), a device's name (CUDA0) or several (CUDA0,CUDA1), which "
        "share the layers, simulated, or cpu for no split", "--device", "-dev",
    )  # fmt: skip
    rpc: Parsed[tuple[str, ...] | None, Sequence[str] | str | None] = option(
        None, "RPC servers (`spac rpc-server` on other machines) that hold whole layers. RPC is neither "
        "encrypted nor authenticated", "--rpc", metavar="HOST:PORT[,…]", parse=addresses,
    )  # fmt: skip
    rpc_layers: Parsed[tuple[int, ...] | None, Sequence[int] | str | int | None] = option(
        None, "the number of layers on each server of --rpc (default: as many as its memory holds, but its "
        "share of both machines' memory if the whole model fits into them)",
        "--rpc-layers", metavar="N[,…]", parse=layer_counts,
    )  # fmt: skip
    slot_devices: Parsed[tuple[str, ...] | None, Sequence[str] | str | None] = option(
        None, "further devices that hold slots alone, for the experts of some layers, whose dense parts stay "
        "on the device of --device; each such layer's input is copied there, and its output back",
        "--slot-devices", metavar="NAME[,…]", parse=slot_devices,
    )  # fmt: skip
    threads: int = option(
        0, "CPU threads; 0 is one per physical core, beside a GPU two fewer", "--threads", "-t",
        range=Range(0, 512), group=CONTEXT_GROUP,
    )  # fmt: skip
    ctx: int | None = option(
        None, f"context in tokens; 0 is what the model was trained for (default: that, but {DEFAULT_CONTEXT} "
        "at most)", "--ctx", "--ctx-size", "-c", range=CONTEXT, group=CONTEXT_GROUP,
    )  # fmt: skip
    batch: int = option(
        GraphTokens.LARGE, "tokens of a prompt evaluated at once, at most", "--batch", "--batch-size", "-b",
        range=Range(1, 2**20), group=CONTEXT_GROUP,
    )  # fmt: skip
    ubatch: Parsed[GraphTokens, GraphTokens | str | int] = option(
        "auto", f"tokens of one graph, 1 to 65536; auto: {GraphTokens.SMALL}, and up to {GraphTokens.LARGE} "
        "(--batch at most) for a prompt whose experts all come to the device, as memory allows",
        "--ubatch", "--ubatch-size", "-ub", metavar="N|auto", group=CONTEXT_GROUP, parse=GraphTokens.parse,
    )  # fmt: skip
    parallel: int = option(
        1, "generations at once: they share the context, and an expert that several of them choose is read "
        f"once; -1 means {AUTO_PARALLEL}, fewer if the context has less than {LEAST_SHARE} tokens for each "
        "or the memory has no place for more, and 1 for what needs one at a time (default: 1; -1 in spac "
        "serve)", "--parallel", "-np", range=PARALLEL, group=CONTEXT_GROUP,
    )  # fmt: skip
    stream_batch: Parsed[StreamBatch | None, StreamBatch | str | int | None] = option(
        None, "prompt batches of at least N tokens run all experts on the device; 0 disables it; auto finds "
        "N from measured costs (default: auto; 0 on the simulated device)",
        "--stream-batch", metavar="N|auto", parse=StreamBatch.parse,
    )  # fmt: skip
    lookahead: int | None = option(
        None, "each layer's input is also shown to the router of the layer N ahead, and the experts that it "
        f"would choose are loaded first; 0 disables it (default: {DEFAULT_LOOKAHEAD}; 0 on the simulated "
        "device, with --deterministic, with schedulers whose table says so, and where memory does not hold "
        "all experts)", "--lookahead", range=Range(0, 64),
    )  # fmt: skip
    miss: str = option(
        "cpu", "where a step computes experts that are not in slots: cpu, or load (they are copied to the "
        "device within their layer, as in other programs' expert caches)", "--miss", choices=MISS_WORDS,
    )  # fmt: skip
    mmproj: Path | str | None = option(
        None, "GGUF of the model's projector (mmproj), which lets it see images", "--mmproj", "-mm",
        group=IMAGES_GROUP,
    )  # fmt: skip
    mmproj_offload: bool = option(
        True, "compute the projector on the CPU, not on the device", "--mmproj-offload",
        off=("--no-mmproj-offload",), group=IMAGES_GROUP,
    )  # fmt: skip
    image_min_tokens: int | None = option(
        None, "tokens of an image at least, for models that choose its size (default: the projector's)",
        "--image-min-tokens", range=IMAGE_TOKENS, group=IMAGES_GROUP,
    )  # fmt: skip
    image_max_tokens: int | None = option(
        None, "tokens of an image at most, for models that choose its size (default: the projector's)",
        "--image-max-tokens", range=IMAGE_TOKENS, group=IMAGES_GROUP,
    )  # fmt: skip
    state: Path | str | None = option(
        "auto", "start warm with what the scheduler learned in earlier runs, and save at the end what it "
        "learned: auto in the cache folder, for each model, device and scheduler (not with --deterministic), "
        "off nowhere, FILE in this file", "--state", metavar="FILE|auto|off",
    )  # fmt: skip
    model_params: Mapping[str, Any] = option(
        dict, "further fields of llama_model_params to set, by llama.cpp's names"
    )
    context_params: Mapping[str, Any] = option(
        dict, "further fields of llama_context_params to set, by llama.cpp's names"
    )
    most_parallel: int = option(AUTO_PARALLEL, "generations at once with a parallel of -1, at most")
    sampling: SamplingConfig = option(SamplingConfig, "how tokens are chosen, where a call does not say it")

    def __post_init__(self) -> None:
        if not self.target:
            raise InputError("no target: name the GGUF file of a model")
        super().__post_init__()
        if self.device.lower() == "stand-in":  # the simulated device's former name
            object.__setattr__(self, "device", "simulated")
        if isinstance(self.scheduler, SchedulerChoice):
            object.__setattr__(
                self, "scheduler", SchedulerChoice.parse(self.scheduler, self.scheduler_options)
            )
        self._check_draft()
        check(self.rpc, self.rpc_layers)
        if self.slot_devices and self.drafts_itself:
            raise InputError(
                "draft-type self needs all experts on the main device: choose another, or leave out "
                "--slot-devices"
            )
        least, most = self.image_min_tokens, self.image_max_tokens
        if least is not None and most is not None and least > most:
            raise InputError(f"image_min_tokens {least} is more than image_max_tokens {most}")
        for name in self.draft_types:
            if name.startswith("draft-") and name != "draft-mtp" and self.draft is None:
                raise InputError(f"draft-type {name} needs a draft model: add --draft FILE")
        if self.miss != "cpu" and self.deterministic:
            raise InputError(f"miss {self.miss} goes by when slots are free, which --deterministic excludes")
        if self.parallel == 0:
            raise InputError("parallel must be from 1 to 64, or -1 for as many as fit, not 0")
        if self.lookahead and self.deterministic:
            raise InputError("lookahead loads while a step runs, which --deterministic excludes")

    def _check_draft(self) -> None:
        for name in ("auto", "self"):
            if len(named := self.draft_type or ()) > 1 and name in named:
                raise InputError(f"draft-type {name} cannot be used together with others: name it alone")
        if self.draft_length is not None and self.draft_max is not None:
            raise InputError("draft_length is every draft's, draft_max the longest one's: give one of them")
        if self.latency_budget is not None and not self.is_governed:
            raise InputError(
                "latency_budget needs a draft length that is chosen while it runs: "
                "leave out draft_length and deterministic"
            )
        if self.draft_min > self.longest_draft:
            raise InputError(f"draft_min {self.draft_min} is more than draft_length {self.longest_draft}")

    @property
    def state_file(self) -> Path | None:
        """The file of the warm state; None with "auto" and "off"."""
        return Path(self.state) if self.state and str(self.state) not in STATE_WORDS else None

    @property
    def keeps_state(self) -> bool:
        """True if the warm state is kept in the cache folder. It would make equal runs differ."""
        return str(self.state) == "auto" and not self.deterministic

    @property
    def is_governed(self) -> bool:
        """True if the governor chooses the draft length of each step, by times."""
        return self.draft_length is None and not self.deterministic

    @property
    def leaves_split(self) -> bool:
        """True if no option asks for the split, so that a model may run without it if all experts fit."""
        default = self.slots.is_auto and self.scheduler == _chosen(EngineConfig.scheduler)
        asked = (self.rpc, self.slot_devices, self.model_params, self.drafts_itself, self.state_file)
        tuned = self.lookahead is not None or self.stream_batch is not None or self.miss != "cpu"
        return default and not any(asked) and not tuned and self.paging != "on"

    @property
    def longest_draft(self) -> int:
        """The largest number of tokens drafted per step; the number of every step if the length is fixed."""
        if self.draft_length is not None:
            return self.draft_length
        if self.draft_max is not None:
            return self.draft_max
        longest = LONGEST if self.is_governed else FIXED_LENGTH
        if self.draft_type == ("draft-mtp",):
            longest = LONGEST_MTP
        # A verification is one batch: the draft and the token before it.
        return min(longest, self.batch - 1)

    @property
    def drafts_itself(self) -> bool:
        """True if the target drafts for itself."""
        return self.draft_types == ("self",)

    @property
    def drafts_auto(self) -> bool:
        """True if the configuration names no way to draft."""
        return self.draft_type in (None, ("auto",))

    @property
    def unused_options(self) -> str:
        """A note on options of drafts that are given although nothing drafts; "" if there are none."""
        names = ("draft_length", "draft_max") if self.longest_draft else ()
        given = [name for name in (*names, "latency_budget") if getattr(self, name) is not None]
        if self.draft_types or not given:
            return ""
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        remedy = ": add --draft FILE, or an ngram --draft-type" if self.longest_draft else ""
        return f"{flags}: not used, for nothing drafts{remedy}"

    @property
    def unused_on_cpu(self) -> str:
        """A note on options of a device's memory that are given without a device; "" if there are none."""
        given = [] if self.slots.is_auto else [f"--slots {self.slots}"]
        given += [] if self.vram_limit is None else [f"--vram-limit {self.vram_limit}"]
        return f"{', '.join(given)}: not used, for everything runs on the CPU" if given else ""

    @property
    def draft_types(self) -> tuple[str, ...]:
        """The ways to draft, with defaults resolved; empty without speculation."""
        if self.longest_draft == 0:
            return ()
        if self.drafts_auto:
            return ("draft-simple",) if self.draft is not None else ()
        return tuple(name for name in self.draft_type or () if name != "none")

    @property
    def n_parallel(self) -> int:
        """The number of generations at once, with -1 resolved. `fitting_parallel` looks at the context."""
        return self.parallel if self.parallel != -1 else 1 if self.deterministic else self.most_parallel

    def fitting_parallel(self, context: int) -> int:
        """Return the number of generations at once on a context of so many tokens.

        A number that the user gave stays. Each of the others gets `LEAST_SHARE` tokens, and a place for its
        longest verification in a batch.
        """
        if self.parallel != -1:
            return self.parallel
        window = self.longest_draft + 1 if self.draft_types else 1
        return max(1, min(self.n_parallel, context // LEAST_SHARE, self.batch // window))
