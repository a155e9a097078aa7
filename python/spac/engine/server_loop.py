"""llama.cpp's server on an engine's models: its slots and its speculative loop, with the engine's hooks."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine.batch_recording import StepMeter
from spac.engine.events import Events
from spac.engine.loop_sequence import Beginnings
from spac.engine.pauses import Pauses
from spac.engine.prompt_cache import cache_parameters
from spac.errors import InputError, one_line
from spac.governor import BatchGovernor
from spac.model.c_api import Model
from spac.model.pair import ModelPair
from spac.model.params import POOLINGS

_open: weakref.WeakSet[_core.ServerLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what nobody closed. The interpreter must not end while a loop may call it."""
    for each in list(_open):
        each.close()


@dataclass(frozen=True)
class LoopOptions:
    """The options of llama.cpp's server that an engine's configuration does not have."""

    name: str
    """The model's name in answers."""
    slot_folder: str = ""
    """The folder of saved slots; "" for none."""
    template: Callable[[Model], tuple[str, str]] = lambda _target: ("", "")
    """Returns the Jinja source in place of a target's template, "" for the target's own, and a note or ""."""
    reasons: bool = True
    """False if chat templates are told not to let the model reason."""
    reasoning_budget: int = -1
    """The largest number of reasoning tokens; -1 for no limit."""
    prefills: bool = True
    """True if an assistant's message at the end is the beginning of the answer."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """The template's variables, by name."""
    is_verbose: bool = False
    """True if answers also tell what became of their request, and the loop writes its log to stderr."""
    pooling: str | None = None
    """The way to make one vector of a text's tokens, a key of `POOLINGS`; None for no embeddings."""
    aliases: tuple[str, ...] = ()
    """Further names of the model."""
    reasoning_format: str = "deepseek"
    """The form of an answer's reasoning, as llama-server's --reasoning-format names it."""
    reasoning_message: str = ""
    """The text that ends the reasoning where its budget is spent."""
    parses: bool = True
    """False to leave an answer's reasoning and calls of tools in its content."""
    shows_slots: bool = True
    """False to refuse the list of slots."""


def seeded(sampling: SamplingConfig) -> SamplingConfig:
    """Return the sampling with a seed, which is random if there is none."""
    if sampling.seed not in (None, -1):
        return sampling
    return replace(sampling, seed=int.from_bytes(os.urandom(4)) % (2**32 - 1))


def parameters_of(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the sampling as parameters of `_core.ServerLoop.generate`."""
    return {item.name: getattr(sampling, item.name) for item in fields(sampling)}


def check_loop(config: EngineConfig) -> None:
    """Raise InputError for what the loop would leave out without a word: it mixes slots in its batches."""
    if config.n_parallel > 1 and config.deterministic:
        raise InputError(
            "--deterministic: one generation at a time has it: give --parallel 1, or leave it out"
        )


def served(config: EngineConfig, options: LoopOptions) -> EngineConfig:
    """Return the configuration of an engine that serves with llama.cpp's loop."""
    params = config.context_params
    if options.pooling is not None:
        params = {**params, "pooling_type": POOLINGS[options.pooling], "n_outputs_max": 0}
    return replace(config, context_params=params)


class _Hooks:
    """The callbacks of a loop: a text's beginning, the draft length, and what comes after a step."""

    def __init__(
        self,
        governor: BatchGovernor,
        steps: StepMeter,
        after: Callable[[], object],
        say: Callable[[str], object],
        prepare: Callable[[], object],
        beginnings: Beginnings,
        pauses: Pauses,
    ) -> None:
        self._pauses, self._prepare, self._beginnings = pauses, prepare, beginnings
        self._governor, self._steps, self._after, self._say = governor, steps, after, say
        self._lengths: dict[int, int] = {}

    def text_begin(self, number: int) -> None:
        """Prepare for a prompt, and tell the sequence that it begins."""
        self._prepare()
        if (begin := self._beginnings.pop(number, None)) is not None:
            begin()

    def draft_length(self, n_slots: int, n_max: int) -> int:
        """Return the draft length of a step in which so many slots draft, each at most `n_max` tokens."""
        self._lengths = self._governor.choose(dict.fromkeys(range(n_slots), n_max))
        return max(self._lengths.values(), default=0)

    def step_end(self, step: _core.ParallelStep, seconds: float) -> None:
        """Count a step, or prompts and what was sampled beside them. Let the governor learn from a step."""
        lengths, self._lengths = self._lengths, {}
        self._steps.add(step, lengths, seconds)
        if step.n_prompt:
            self._governor.prompt(step.prefill_ns * 1e-9)
        if lengths and step.verified and not self._pauses.settling:
            self._governor.observe(lengths, step, seconds)
        try:
            self._after()
        except Exception as error:  # the loop cannot take it
            self._say(one_line(str(error)))


def open_loop(
    config: EngineConfig,
    options: LoopOptions,
    pair: ModelPair,
    experts: _core.Experts | None,
    trace: _core.Trace,
    events: Events,
    lock: _core.LoopLock,
    after: Callable[[], object],
    governor: BatchGovernor,
    choose_graph: Callable[[int, int], int] | None,
    steps: StepMeter,
    say: Callable[[str], object],
    make_room: Callable[[], bool],
    prepare: Callable[[], object],
    beginnings: Beginnings,
    pauses: Pauses,
) -> _core.ServerLoop:
    """Return a loop on the contexts of a pair, with `governor` for its drafts.

    The loop holds `lock` while it computes. `prepare` is called before a prompt, then the function that
    `beginnings` has for it, and `after` at a step's end. `choose_graph` returns the size of a prompt's
    graphs, None for the context's own. `steps` counts the loop's steps. The steps behind `pauses` teach
    the governor nothing. `say` receives notes. `make_room` is called when a device had no memory for a step,
    and returns True if it has more. Raise InputError if a step does not fit into a batch.
    """
    _check_steps(config, pair)
    template, note = options.template(pair.target)
    if note:
        say(note)
    loop = _core.ServerLoop(
        str(config.target), options.name, pair.target_context.pointer,
        pair.draft_context.pointer if pair.draft_context is not None else None, experts,
        n_slots=pair.n_sequences, trace=trace, draft_experts=pair.draft_experts, lock=lock, owner=pair,
        chat_template=template, slot_folder=options.slot_folder,
        reasons=options.reasons, reasoning_budget=options.reasoning_budget,
        template_variables={name: json.dumps(value) for name, value in options.variables.items()},
        aliases=list(options.aliases), reasoning_format=options.reasoning_format,
        reasoning_message=options.reasoning_message, parses=options.parses, shows_slots=options.shows_slots,
        prefills=options.prefills, is_verbose=options.is_verbose, embeds=options.pooling is not None,
        projector_file="" if config.mmproj is None else str(config.mmproj), projector=pair.projector,
        adapters=[
            (str(each.path), pointer, scale)
            for each, (pointer, scale) in zip(config.lora, pair.target.adapters, strict=True)
        ],
        draft_types=list(config.draft_types), draft_max=config.longest_draft, draft_min=config.draft_min,
        p_min=config.draft_p_min, **cache_parameters(config, pair), **_sampling_of(config.sampling),
    )  # fmt: skip
    _open.add(loop)
    events.subscribe(loop)
    hooks = _Hooks(governor, steps, after, say, prepare, beginnings, pauses)
    if config.draft_types:
        loop.on("draft_length", hooks.draft_length)
    loop.on("text_begin", events.noting(hooks.text_begin))
    loop.on("step_end", hooks.step_end)
    loop.on("memory_full", make_room)
    if choose_graph is not None:
        loop.on("prompt_graph", choose_graph)
    return loop


LEAST = 2
"""The fewest tokens of a context and of a batch. The loop tries its memory with so many."""


def _check_steps(config: EngineConfig, pair: ModelPair) -> None:
    """Raise InputError for steps that llama.cpp's loop cannot verify, as those larger than a batch."""
    context, window = pair.target_context, 1 + (config.longest_draft if config.draft_types else 0)
    if context.size < LEAST or context.batch_tokens < LEAST:
        raise InputError(f"--ctx and --batch must be at least {LEAST}")
    if (n := pair.n_sequences * window) > context.batch_tokens:
        raise InputError(
            f"a step has up to {n} tokens, and a batch {context.batch_tokens}: give a smaller --parallel or "
            "--draft-max, or a larger --batch and --ubatch"
        )
    if pair.target.is_recurrent and config.draft_types and context.graph_tokens <= window:
        raise InputError(f"--ubatch must be more than {window} for this model's drafts of {window - 1}")


def _sampling_of(sampling: SamplingConfig) -> dict[str, object]:
    """Return the sampling that holds where a request says nothing."""
    return {name: value for name, value in parameters_of(sampling).items() if value is not None}
