"""Offer models that fit this machine, download the chosen one, and start the chat: `spac setup`.

What fits is computed as `spac models` does it, here with an allowance for a context. Without a terminal, the
offer is printed, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spac.cli.options import Parser, add_config
from spac.cli.program import add_talk, guarded, say
from spac.config import EngineConfig
from spac.doctor import devices, host
from spac.errors import InputError, one_line
from spac.machine import host_memory
from spac.machine.device_memory import size
from spac.model import hub
from spac.model.known import MODELS, KnownModel
from spac.models import Row, head, row_of, sized, table

if TYPE_CHECKING:
    from spac.model.devices import DeviceRoom

CONTEXT_BYTES = 1_600_000_000
"""The bytes for a context of 4,096 tokens, buffers and the driver. docs/quickstart.md counts them too."""
LEAST_SHARE = 0.15
"""The least share of experts in slots with which a larger model is recommended rather than a smaller one."""
MOST_ACTIVE = 4.0
"""The most parameters a token, in billions, of a model that is recommended for the CPU alone."""
OFFERED = 3


def make_parser() -> Parser:
    """Return the parser with the options of `spac setup`."""
    parser = Parser(
        prog="spac setup",
        description="Offer models that fit this machine, download the chosen one, and start the chat.",
    )
    add_config(parser, EngineConfig, ("vram_limit",))
    add_talk(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask for a model and start the chat, and return the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _set_up(options))


def _set_up(options: argparse.Namespace) -> int:
    from spac.model.devices import device_room

    limit = getattr(options, "vram_limit", None)
    room = device_room(limit)
    for line in lacking():
        print(f"- {line}")
    models, rows, best = offers(room)
    print(head(room, "a context counted"))
    for line in [*table(rows, room), *_disk(models, rows)]:
        print(line)
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        print(f"`spac chat {models[best].name}` downloads the recommended one, and starts")
        return 0
    if (chosen := _ask(len(models), best)) is None:
        return 0
    path = hub.fetch(hub.Name.parse(models[chosen].hub), "", hub.Access(quiet=options.quiet))
    from spac.chat import main as chat

    words = ["--target", str(path), *(["--quiet"] if options.quiet else [])]
    if limit is not None:
        words += ["--vram-limit", f"{limit.n_bytes >> 10}K" if limit.n_bytes else f"{limit.share:%}"]
    return chat(words)


def lacking() -> Iterator[str]:
    """Yield a line for each part of the installation that a chat with a downloaded model needs and lacks.

    A build without CUDA, kernels or a usable driver counts where there is a driver.
    """
    yield from (each.why for each in host.extras() if each.name in ("extra-hf", "extra-chat") and each.why)
    found = list(devices.gpu())
    if any(each.name == "driver" and each.state == "ok" for each in found):
        why = [each.why for each in found if each.name in ("cuda-build", "kernels", "gpu") and each.why]
        yield from why[:1]


def offers(room: DeviceRoom | None) -> tuple[list[KnownModel], list[Row], int]:
    """Return up to three models that fit, their rows, and the index of the recommended one.

    It is the largest one with a good part of its experts in slots, or on the CPU alone the largest one that
    computes little a token. The others are its neighbours by size. Raise InputError if none fits.
    """
    known = [(model, _row(model, room)) for model in MODELS]
    usable = [(model, row) for model, row in known if row.in_memory and row.dense_fits]
    if not usable:
        raise InputError(_nothing_fits(known[0][1], room))
    quick = [i for i, (model, row) in enumerate(usable) if _is_quick(model, row)]
    best = max(quick, key=lambda i: usable[i][0].file_size, default=0)
    first = max(0, min(best - 1, len(usable) - OFFERED))
    shown = usable[first : first + OFFERED]
    best -= first
    rows = [
        replace(row, name=f"{i + 1}  {row.name}{' (recommended)' if i == best else ''}")
        for i, (_, row) in enumerate(shown)
    ]
    return [model for model, _ in shown], rows, best


def _row(model: KnownModel, room: DeviceRoom | None) -> Row:
    if not host.missing_modules("hf") and (path := hub.cached(hub.Name.parse(model.hub))) is not None:
        row = row_of(f"{model.name}, downloaded", path, room, more_bytes=CONTEXT_BYTES)
        if not row.fault:
            return replace(row, drafts=())
    return sized(model.name, model, room, CONTEXT_BYTES)


def _is_quick(model: KnownModel, row: Row) -> bool:
    if row.slots is None:
        return model.active <= MOST_ACTIVE
    return row.slots >= LEAST_SHARE * model.n_experts


def _nothing_fits(least: Row, room: DeviceRoom | None) -> str:
    """Return why the smallest model does not fit."""
    own = "`spac chat FILE` runs a smaller one of your own"
    if least.in_memory and room is not None:
        return f"{room.names} has room for {size(room.free)}, too little for the models known here: {own}"
    free = size(host_memory.available())
    return (
        f"the smallest model known here takes {size(least.host_bytes)} of memory, and {free} are left: {own}"
    )


def _disk(models: Sequence[KnownModel], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each model that the disk of the cache does not hold."""
    for model, row in zip(models, rows, strict=True):
        if not row.path and not host.missing_modules("hf"):
            try:
                hub.check_disk(hub.Name.parse(model.hub).repo, model.file_size)
            except InputError as error:
                yield f"- {error}"


def _ask(n: int, best: int) -> int | None:
    """Return the index of the model that the user names by its number; None if none is wanted."""
    while True:
        try:
            text = input(f"Which one? 1 to {n}, Enter takes {best + 1}, q leaves: ").strip()
        except EOFError:
            return None
        if text in ("q", "quit", "exit"):
            return None
        if not text:
            return best
        if text.isdecimal() and 1 <= int(text) <= n:
            return int(text) - 1
        say(f"spac setup: '{one_line(text)}' is not a number from 1 to {n}")
