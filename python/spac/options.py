"""The command line, made from the fields of the configuration: the same options in every program."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from spac import scheduler
from spac.config import EngineConfig, Range, SamplingConfig, Slots
from spac.errors import InputError, one_line
from spac.stream_batch import StreamBatch
from spac.vram import VramLimit


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with exit code 2."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (--help lists the options)\n")


def number(kind: type[int] | type[float], limits: Range | None) -> Callable[[str], Any]:
    """A converter for argparse whose message states the accepted range."""

    def convert(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if value != value or (limits is not None and value not in limits):
            what = "a whole number" if kind is int else "a number"
            accepted = f", {limits}" if limits is not None else ""
            raise argparse.ArgumentTypeError(f"must be {what}{accepted}, not '{text}'")
        return value

    return convert


def _names(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def convert(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(choices)}")
        return names

    return convert


def _parsed(parse: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{name}: ")) from None

    return convert


_PARSERS: dict[str, Callable[[str], Any]] = {
    "Slots": Slots.parse,
    "StreamBatch": StreamBatch.parse,
    "VramLimit": VramLimit.parse,
}
"""Of fields whose values are written in several ways, by the name of their type."""


def _scheduler(text: str) -> str:
    try:
        scheduler.make(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_config(
    parser: argparse.ArgumentParser,
    config: type[EngineConfig] | type[SamplingConfig],
    only: Collection[str] | None = None,
) -> None:
    """An option for every field that declares flags, or for those named in `only`.

    What is not given stays out of the namespace.
    """
    for item in fields(config):
        if item.metadata.get("flags") and (only is None or item.name in only):
            parser.add_argument(
                *item.metadata["flags"],
                dest=item.name,
                default=argparse.SUPPRESS,
                help=_help(item),
                **_kind(item),
            )


def _kind(item: Field[Any]) -> dict[str, Any]:
    meta, kind = item.metadata, str(item.type).split(" | ")[0]
    if kind == "bool":
        return {"action": "store_true"}
    metavar = meta["metavar"]
    if kind in ("int", "float"):
        return {"type": number(int if kind == "int" else float, meta["range"]), "metavar": metavar or "N"}
    if meta["choices"] and kind == "str":
        return {"choices": meta["choices"], "metavar": metavar}
    if meta["choices"]:
        return {"type": _names(meta["choices"]), "metavar": metavar or "TYPE[,TYPE]"}
    if item.name == "scheduler":
        return {"type": _scheduler, "metavar": metavar}
    if kind in _PARSERS:
        return {"type": _parsed(_PARSERS[kind], item.name), "metavar": metavar}
    return {
        "type": Path if kind == "Path" else str,
        "metavar": metavar or ("FILE" if kind == "Path" else "TEXT"),
    }


def _help(item: Field[Any]) -> str:
    text = str(item.metadata["help"])
    if item.metadata["range"] is not None:
        text += f"; {item.metadata['range']}"
    if (
        isinstance(item.default, int | float | str)
        and not isinstance(item.default, bool)
        and item.default != ""
    ):
        text += f" (default: {item.default})"
    return text.replace("%", "%%")


def read_config(
    options: argparse.Namespace, target: Path, draft: Path | None, **defaults: Any
) -> EngineConfig:
    """The configuration that the options ask for; `defaults` are the sampling's where they say nothing."""
    given = vars(options)

    def named(config: type[EngineConfig] | type[SamplingConfig]) -> dict[str, Any]:
        return {item.name: given[item.name] for item in fields(config) if item.name in given}

    sampling = SamplingConfig(**{**defaults, **named(SamplingConfig)})
    return EngineConfig(**{**named(EngineConfig), "target": target, "draft": draft, "sampling": sampling})
