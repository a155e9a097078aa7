"""What rows of logits cost on the device: `python -m bench.logit_rows [--out FILE]`.

llama.cpp plans a context for logits of every token of a ubatch. A session reads one row for every token of a
verification, so an engine's contexts are made for these alone. The program makes twins of named models with
their real widths and vocabularies, and two layers each: the buffers of a context's graphs do not grow with
layers. It opens every pair in both ways on the simulated device, and prints the sizes of the buffers that
llama.cpp reports, what all buffers take on the device, and how many experts fit into the same limit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.device_memory import MARGIN_SHARE
from spac.model.c_api import echo_log
from tools.twin.catalog import MODELS, Named
from tools.twin.drift import PUBLISHED, solve
from tools.twin.writer import Twin, draft_of, write_twin

NAMES = ("qwen3-30b-a3b", "gpt-oss-20b")
UBATCH, DRAFT_LENGTH, N_LAYER = 512, 16, 2
SHARE = 0.25  # of the experts: about what the limit has room for as llama.cpp plans contexts
PROMPT = [(7 * i) % 1000 for i in range(700)]
_BUFFER = re.compile(rb"(\S+) compute buffer size = +([\d.]+) MiB")


@dataclass(frozen=True)
class Sizes:
    """One pair, opened one way. Bytes; `buffers`: of the contexts' graphs, on the device."""

    buffers: list[float]
    used: int
    slots: int
    n_experts: int
    expert_bytes: int
    text: str


def with_layers(model: Named, n_layer: int) -> Named:
    """Return the model with fewer layers."""
    return replace(model, shape=replace(model.shape, n_layer=n_layer))


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the twins of a target and of its draft."""
    model = MODELS[name]
    assert model.draft is not None
    twin = Twin(name, with_layers(model, N_LAYER), model.mix, solve(*PUBLISHED, 128, 8, 0.0))
    drafted = replace(MODELS[model.draft], pre=model.pre)
    draft = draft_of(twin, with_layers(drafted, N_LAYER), 0.8, "q4_k_m", model.draft)
    paths = folder / f"{name}.gguf", folder / f"{name}-draft.gguf"
    for path, each in zip(paths, (twin, draft), strict=True):
        write_twin(path, each)
    return paths


@contextmanager
def reported() -> Iterator[list[tuple[str, float]]]:
    """Collect the buffers of graphs that llama.cpp reports: device, bytes."""
    found: list[tuple[str, float]] = []

    def hear(_level: int, text: bytes, _data: object) -> None:
        if match := _BUFFER.search(text):
            found.append((match[1].decode(), float(match[2]) * 2**20))

    echo_log(hear)
    try:
        yield found
    finally:
        echo_log(None)


def memory() -> _core.DeviceMemory:
    """Return what the simulated device holds."""
    return next(device.memory for device in _core.devices() if device.name == "simulated")


def measure(target: Path, draft: Path, limit: int, *, every_token: bool) -> Sizes:
    """Open a pair with as many slots as fit, and generate. `every_token`: as llama.cpp plans it."""
    config = EngineConfig(
        target=target, draft=draft, draft_length=DRAFT_LENGTH, device="simulated", threads=2, ctx=4096,
        batch=2048, ubatch=UBATCH, slots="auto", vram_limit=limit or None, deterministic=True,
        context_params={"n_outputs_max": 0} if every_token else {},
        sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    with reported() as found, Engine(config) as engine:
        buffers = [size for name, size in found if name == "simulated"]
        text = "".join(engine.generate(PROMPT, 24))
        assert engine.experts is not None
        layers, slots = engine.experts.layers, engine.experts.slots
        peak, others = memory().peak, memory().used - slots.bytes
        assert not limit or peak <= limit
        n_experts = sum(layer.n_expert for layer in layers)
        return Sizes(buffers, others, slots.n_slots, n_experts, layers[0].expert_bytes, text)


def describe(name: str, folder: Path) -> list[str]:
    """Measure one pair in both ways, without a limit and with one. Return the lines."""
    model = MODELS[name]
    files = write_pair(folder, name)
    with_all, capped = (measure(*files, 0, every_token=every) for every in (True, False))
    limit = int((with_all.used + SHARE * with_all.n_experts * with_all.expert_bytes) / (1 - MARGIN_SHARE))
    limited = [measure(*files, limit, every_token=every) for every in (True, False)]
    assert len({each.text for each in (with_all, capped, *limited)}) == 1
    whole = model.shape.n_layer * model.shape.n_expert
    saved = with_all.used - capped.used
    row = model.shape.n_vocab * 4
    lines = [
        f"{name} and {model.draft}: a vocabulary of {model.shape.n_vocab:,}, ubatch {UBATCH}, drafts of "
        f"{DRAFT_LENGTH}",
        f"{'':38}{'every token':>16}{'as needed':>16}{'difference':>16}{'rows alone':>16}",
    ]

    def line(what: str, before: float, after: float, rows: str = "") -> None:
        lines.append(f"{what:38}{before:16,.0f}{after:16,.0f}{after - before:+16,.0f}{rows:>16}".rstrip())

    graphs = zip(with_all.buffers, capped.buffers, strict=True)
    for whose, n, (before, after) in zip(("target", "draft"), (DRAFT_LENGTH + 1, 1), graphs, strict=True):
        line(f"graphs of the {whose}, bytes", before, after, f"{(n - UBATCH) * row:+,}")
    line("device memory without slots, bytes", with_all.used, capped.used)
    line(f"slots within {limit:,} bytes", limited[0].slots, limited[1].slots)
    lines.append(
        f"{saved:,} bytes hold {saved / capped.expert_bytes:.0f} experts of {capped.expert_bytes:,} bytes: "
        f"{saved / capped.expert_bytes / whole:.1%} of the {whole} of the whole model. The text is the same "
        "in all four runs."
    )
    return [*lines, ""]


def main() -> None:
    """Measure all pairs."""
    parser = argparse.ArgumentParser(prog="bench.logit_rows", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="write the table there too")
    parser.add_argument("--folder", type=Path, help="where the models are written (default: a temporary one)")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        f"python -m {' '.join(['bench.logit_rows', *sys.argv[1:]])}, at commit {commit}; simulated device",
        "",
    ]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in NAMES:
            lines += describe(name, Path(folder))
    lines.append(
        "Every pair has the real widths and vocabularies, and two layers. "
        "Graphs are llama.cpp's compute buffers. "
        "They shrink by\nless than the rows alone, for something else in a graph is then the largest."
    )
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
