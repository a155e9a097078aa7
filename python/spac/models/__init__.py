"""Models of the cache, and what of them would fit on this machine: `spac models`.

The size of the expert cache is computed from the files' headers. Speeds come from what earlier runs measured.
Nothing is loaded, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac.cli.options import Parser, add_config
from spac.cli.program import add_talk, guarded, say
from spac.config import EngineConfig
from spac.errors import InputError
from spac.machine import host_memory
from spac.machine.device_memory import size
from spac.stats.words import columns, number

if TYPE_CHECKING:
    from spac.model.devices import DeviceRoom
    from spac.model.gguf.info import ModelInfo
    from spac.model.known import KnownModel


@dataclass(frozen=True)
class Pair:
    """A target and a draft with its vocabulary. `target` and `draft` are patterns of models' names."""

    target: str
    draft: str
    example: str
    """A name of the draft for readers."""
    tried: bool = False


PAIRS = (
    Pair(r"^demo$", r"^demo draft$", "the demo's draft", tried=True),
    Pair(r"qwen3-(coder-)?(30b|235b|480b)-a\d+b", r"qwen3-(0\.6|1\.7)b", "Qwen3-0.6B"),
    Pair(r"gpt-oss-120b", r"gpt-oss-20b", "gpt-oss-20b"),
    Pair(r"deepseek-(v2|coder-v2)(?!-?lite)", r"deepseek-(v2|coder-v2)-lite", "DeepSeek-V2-Lite"),
)
"""Pairs whose models were published with one vocabulary. The project has tried those marked, no others."""


@dataclass(frozen=True)
class Row:
    """A model, and what of it would fit. Sizes are in bytes; None stands for what is not known."""

    name: str
    path: str
    quant: str
    bytes: int
    experts: int
    """The number of experts of a layer; 0 for a dense model."""
    expert_layers: int
    active: int
    """The number of experts of a layer that compute a token."""
    slots: int | None
    """The number of experts that the device holds; None without a device."""
    dense_fits: bool
    """True if the device holds what is not experts."""
    host_bytes: int
    """The bytes of host memory that the model takes."""
    in_memory: bool
    """True if host memory holds them now."""
    tokens_per_second: float | None = None
    """The expected speed without a draft; None if nothing was measured."""
    speed_from: str = ""
    """The source of the speed, as `spac.model.expected_speed` names it; "" without one."""
    drafts: tuple[str, ...] = ()
    """Ways to draft for it, as sentences."""
    fault: str = ""
    """The reason why the file cannot be run; "" if it can."""


def make_parser() -> Parser:
    """Return the parser of `spac models`' options."""
    parser = Parser(
        prog="spac models",
        description="List the models that were downloaded by name (-hf), and what of them would fit here.",
    )
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    add_config(parser, EngineConfig, ("vram_limit",))
    add_talk(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """List the models, and return the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _list(options))


def _list(options: argparse.Namespace) -> int:
    from spac.model.devices import device_room

    room = device_room(getattr(options, "vram_limit", None))
    rows = rows_of(_files(options.quiet), room)
    if options.json:
        print(json.dumps({"schema": 1, "models": [asdict(row) for row in rows]}))
    else:
        print("\n".join([head(room), *table(rows, room)]))
    return 0


def _files(quiet: bool) -> list[tuple[str, Path]]:
    """Return names and files of the demo pair and of the cache's models."""
    from spac.model.hub import cached_models

    found = []
    try:
        demo: Any = importlib.import_module("spac.demo")
        found += [("demo", Path(demo.TARGET)), ("demo draft", Path(demo.DRAFT))]
    except (ImportError, AttributeError):
        pass  # an installation without the demo pair
    try:
        return found + [(model.name, model.path) for model in cached_models()]
    except InputError as error:
        if not quiet:
            say(f"spac: {error}")
        return found


def rows_of(files: Sequence[tuple[str, Path]], room: DeviceRoom | None) -> list[Row]:
    """Return a row for each file."""
    names = [name for name, _ in files]
    return [row_of(name, path, room, names) for name, path in files]


def sized(name: str, info: ModelInfo | KnownModel, room: DeviceRoom | None, more_bytes: int = 0) -> Row:
    """Return a model's row, as far as its sizes tell it, with `more_bytes` on the device beside it."""
    from spac.model.devices import fit

    fitting = fit(info, room, more_bytes) if room is not None else None
    slots = fitting.n_slots if fitting is not None and info.is_moe else None
    host_bytes = info.file_size if slots is None else info.expert_bytes
    return Row(
        name, "", "", info.file_size, info.n_expert, info.n_expert_layers, info.n_expert_used, slots,
        dense_fits=fitting is None or room is None or fitting.dense_bytes <= room.free,
        host_bytes=host_bytes, in_memory=host_bytes <= host_memory.available(),
    )  # fmt: skip


def row_of(
    name: str, path: Path, room: DeviceRoom | None, names: Sequence[str] = (), more_bytes: int = 0
) -> Row:
    """Return the row of a file, with `more_bytes` on the device beside it. `names` are possible drafts."""
    from spac.model.expected_speed import expected_speed
    from spac.model.gguf.check import check_model
    from spac.model.paging import is_paged

    try:
        info = check_model(path)
    except InputError as fault:
        return Row(name, str(path), "", 0, 0, 0, 0, None, False, 0, False, fault=str(fault))
    device = room.device if room is not None else None
    row = sized(name, info, room, more_bytes)
    speed = expected_speed(info, device.name if device is not None else "cpu")
    return replace(
        row,
        path=str(path),
        quant=next(iter(info.expert_types or info.types), "").upper(),
        in_memory=row.in_memory and not is_paged(EngineConfig(target=path), info, device),
        tokens_per_second=speed.tokens_per_second if speed is not None else None,
        speed_from=speed.source if speed is not None else "",
        drafts=tuple(_drafts(name, info, names)),
    )


def _drafts(name: str, info: ModelInfo, names: Sequence[str]) -> Iterator[str]:
    """Yield the ways to draft for a model, with the drafts that are there."""
    if info.has_mtp:
        yield "its own layers, as long as they pay (--draft-type auto)"
    for pair in PAIRS:
        if not re.search(pair.target, name, re.IGNORECASE):
            continue
        tried = "tried" if pair.tried else "untried"
        there = [other for other in names if re.search(pair.draft, other, re.IGNORECASE)]
        yield from (f"{other} ({tried})" for other in there)
        if not there:
            yield f"{pair.example}, which is not in the cache ({tried})"


def head(room: DeviceRoom | None, contexts: str = "contexts not counted") -> str:
    """Return a line on the devices' memory."""
    if room is None:
        return "no GPU: the CPU computes everything; --vram-limit 8G shows what a GPU of 8 GiB would hold"
    return f"{room.names}: room for {size(room.free)}, {contexts}"


def table(rows: Sequence[Row], room: DeviceRoom | None) -> Iterator[str]:
    """Yield a table, then what the speeds come from, the faults and the drafts."""
    from spac.model.expected_speed import SOURCES

    memory = f"memory (of {size(host_memory.available())})"
    where = room.device.name if room is not None and room.device is not None else "the CPU alone"
    cells: list[tuple[str, ...]] = [
        ("model", "size", "experts", "active", "slots that fit", memory, f"tokens/s on {where}")
    ]
    cells += [_cells(row) for row in rows if not row.fault]
    yield from columns(cells)
    sources = dict.fromkeys(row.speed_from for row in rows if row.speed_from)
    yield from (f"tokens/s ({source}): without a draft, {SOURCES[source]}" for source in sources)
    yield from (f"{row.name}: {row.fault}" for row in rows if row.fault)
    yield from (f"a draft for {row.name}: {each}" for row in rows for each in row.drafts)


def _cells(row: Row) -> tuple[str, ...]:
    n_experts = row.experts * row.expert_layers
    experts = f"{row.expert_layers} × {row.experts}" if n_experts else "dense"
    slots = "–"
    if row.slots is not None:
        slots = f"{row.slots:,} of {n_experts:,} ({row.slots / n_experts:.0%})"
    slots = slots if row.dense_fits else "the rest does not fit" if n_experts else "does not fit"
    speed = "not measured"
    if row.tokens_per_second is not None:
        at_most = "at most " if row.speed_from == "weights" else ""
        speed = f"{at_most}{number(row.tokens_per_second)} ({row.speed_from})"
    memory = size(row.host_bytes) + ("" if row.in_memory else ", not all of it fits")
    active = str(row.active) if n_experts else "–"
    return row.name, size(row.bytes), experts, active, slots, memory, speed
