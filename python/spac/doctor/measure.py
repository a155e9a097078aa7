"""The findings of `spac doctor --measure`: what an engine learns of a model's costs from its own steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spac.config import EngineConfig, SamplingConfig
from spac.config.values import Slots, VramLimit
from spac.doctor.trial import Finding
from spac.stats.words import counted, seconds, size

if TYPE_CHECKING:
    from spac.costs import Costs
    from spac.engine import Engine

_TOKENS, _STEPS = 128, 12  # tokens of the text without drafts; steps of every draft length, at least
_SHOWN = (1, 2, 4, 8, 9, 16)  # sizes of verifications; CUDA's kernels switch behind 8
_PROMPT = "A story of the mill at the river, and of the people who lived there:"


def costs(target: Path | None, draft: Path | None, vram_limit: VramLimit | None) -> Iterator[Finding]:
    """Yield what experts, transfers, drafts and verifications of a model cost here.

    Without a target, the bundled demo pair is measured. Half of the experts have slots if all of them fit,
    so that the CPU has work too. The costs are kept for later runs. On the simulated device, an engine does
    not separate the device's time from the rest, and what is shown of it is a guess.
    """
    from spac import demo
    from spac.engine import Engine
    from spac.model.devices import choose_device

    device = "auto"
    if target is None:
        target, draft = demo.TARGET, demo.DRAFT
        device = "auto" if choose_device("auto") is not None else "simulated"
    sampling = SamplingConfig(temp=0, ignore_eos=True)
    config = EngineConfig(
        target, draft, device=device, vram_limit=vram_limit, ctx=1024, state="off", sampling=sampling
    )
    for slots in ("auto", "50%"):
        with Engine(replace(config, slots=Slots.parse(slots), keeps_split="the split is measured")) as engine:
            if engine.experts is None or engine.costs is None:
                yield Finding("costs", "off", "not measured", f"{target.name} runs without the split here")
                return
            if slots == "auto" and engine.experts.slots.n_slots == engine.n_experts:
                continue
            _run(engine)
            sizes = {layer.pool: layer.expert_bytes for layer in engine.experts.layers}
            yield from cost_findings(engine.costs.costs, sizes, drafts=bool(engine.config.draft_types))
            return


def _run(engine: Engine) -> None:
    """Generate texts with every draft length."""
    longest = engine.config.longest_draft if engine.config.draft_types else 0
    for length in range(longest + 1):
        engine.fix_draft_length(length)
        "".join(engine.generate(_PROMPT, _STEPS * (length + 1) if length else _TOKENS))


def cost_findings(found: Costs, sizes: Mapping[int, int] | None = None, *, drafts: bool) -> Iterator[Finding]:
    """Yield what is known of a model's costs, with those of its draft if `drafts`.

    `sizes` has the bytes of an expert of each pool, if they are known.
    """
    for pool, cost in enumerate(found.experts):
        n_bytes = 0 if sizes is None else sizes[pool]
        link = f" ({size(n_bytes / cost.upload_s)}/s)" if n_bytes and cost.upload_s else ""
        cpu = f"CPU {seconds(cost.cpu_expert_s)}, and {seconds(cost.cpu_pair_s)} for each token"
        rest = f"device {seconds(cost.device_expert_s)}; copy {seconds(cost.upload_s)}{link}"
        yield Finding(f"expert of {size(n_bytes)}" if n_bytes else "expert", "ok", f"{cpu}; {rest}")
    if found.hand_off_s is not None:
        yield Finding("hand-off", "ok", f"{seconds(found.hand_off_s)} for a layer that the CPU has a part of")
    if drafts:
        each = f"{seconds(found.draft_base_s)}, and {seconds(found.draft_token_s)} for each token"
        yield Finding("draft", "ok", each)
    sizes_shown = [n for n in _SHOWN if n <= len(found.verify_s)]
    verify = ", ".join(f"{seconds(found.verify(n))} for {counted(n, 'token')}" for n in sizes_shown)
    dense = ", ".join(seconds(found.dense(n)) for n in sizes_shown)
    yield Finding("verification", "ok", f"{verify}; without experts {dense}")
