"""The options of the command line, made from the configuration's fields. All programs share them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import Any

from spac.cli.parser import Parser
from spac.cli.spellings import SPELLINGS, Change, Gather, Spelling
from spac.config import EngineConfig, Range, SamplingConfig
from spac.config.context import FLASH_ATTENTION
from spac.config.fields import help_of, option_fields
from spac.config.overrides import parse_overrides
from spac.config.sampling import parse_bias, sampler_names
from spac.config.values import Adapter
from spac.errors import InputError
from spac.model import known
from spac.model.hub import Access, Name, fetch

Config = type[EngineConfig] | type[SamplingConfig]
__all__ = ["Parser", "add_config", "add_engine", "add_sampling", "number", "parsed", "read_config"]


def number(kind: type[int] | type[float], limits: Range | None) -> Callable[[str], Any]:
    """Return a converter for argparse whose error states the accepted range."""

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
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(choices)}")
        return names

    return convert


def parsed(parse: Callable[[str], Any], name: str = "") -> Callable[[str], Any]:
    """Return `parse` with argparse's own error, which has the message without the name in front."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            words = str(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")
            raise argparse.ArgumentTypeError(words) from None

    return convert


def _flash_attention(text: str) -> str:
    """Return the value for a word, or for a synonym that llama.cpp accepts too."""
    words = {"enabled": "on", "true": "on", "1": "on", "disabled": "off", "false": "off", "0": "off"}
    word = words.get(text, text)
    if word not in FLASH_ATTENTION:
        raise InputError(f"'{text}' is not one of {', '.join(FLASH_ATTENTION)}")
    return word


_NAMED: dict[str, Callable[[str], Any]] = {"flash_attn": _flash_attention, "samplers": sampler_names}
"""Parsers of fields whose type alone does not say how a value is written, by the field's name."""
_OPTIONAL: dict[str, dict[str, Any]] = {"flash_attn": {"nargs": "?", "const": "on"}}
"""Further arguments of options that once had no value in llama.cpp, by the field's name."""
_GATHERED: dict[str, Callable[[str], Any]] = {
    "lora": Adapter.parse,
    "override_kv": parse_overrides,
    "logit_bias": parse_bias,
}
"""Parsers of fields whose options may be given several times, by the field's name."""


def add_engine(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    """Add the engine's options, under the heading "engine" and those that fields name.

    Models by name are among them if the target is.
    """
    _add(parser, "engine", EngineConfig, only)
    if only is None or "target" in only:
        add_hub(parser)


def add_sampling(parser: argparse.ArgumentParser, **defaults: float) -> None:
    """Add the sampling's options, under their heading. `defaults` are the program's own, for the help."""
    _add(parser, "sampling", SamplingConfig, None)
    for action in parser._actions:
        if action.dest in defaults and action.help:
            own = f"(default: {defaults[action.dest]:g})"
            action.help = re.sub(r"\(default: [^)]*\)", own, action.help)


def _add(parser: argparse.ArgumentParser, own: str, config: Config, only: Collection[str] | None) -> None:
    groups = {"": parser.add_argument_group(own)}
    for name, add in _items(config, only):
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        add(groups[name])


def add_config(parser: argparse._ActionsContainer, config: Config, only: Collection[str]) -> None:
    """Add the options of the fields named by `only`, without a heading."""
    for _, add in _items(config, only):
        add(parser)


def _items(
    config: Config, only: Collection[str] | None
) -> Iterator[tuple[str, Callable[[argparse._ActionsContainer], None]]]:
    """Yield the heading and the adder of each option: a configuration's own, then the inherited ones.

    Spellings follow their field. `only` limits them to the named fields. An option that the user does not
    give stays out of the namespace.
    """
    for item in option_fields(config):
        if only is not None and item.name not in only:
            continue
        if item.metadata.get("flags"):
            yield item.metadata["group"], partial(_add_field, item)
        for each in SPELLINGS:
            if each.field == item.name:
                yield each.group, partial(_add_spelling, each)


def _add_field(item: Field[Any], parser: argparse._ActionsContainer) -> None:
    flags = item.metadata["flags"]
    common: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS}
    if item.metadata["off"]:
        parser.add_argument(*flags, action="store_true", help=argparse.SUPPRESS, **common)
        parser.add_argument(*item.metadata["off"], action="store_false", help=_help(item), **common)
    else:
        parser.add_argument(*flags, help=_help(item), **common, **_kind(item))


def _add_spelling(item: Spelling, parser: argparse._ActionsContainer) -> None:
    common: dict[str, Any] = {"dest": item.field, "default": argparse.SUPPRESS, "help": item.help}
    if item.metavar is None:
        parser.add_argument(*item.flags, action=Change, change=item.change, **common)
        return
    common |= {"type": parsed(item.change, item.field), "metavar": item.metavar}
    parser.add_argument(*item.flags, action=Gather if item.field in _GATHERED else "store", **common)


def _kind(item: Field[Any]) -> dict[str, Any]:
    meta, kind = item.metadata, _type(item)
    if kind == "bool":
        return {"action": "store_true"}
    metavar = meta["metavar"]
    if item.name in _GATHERED:
        return {"type": parsed(_GATHERED[item.name], item.name), "metavar": metavar, "action": Gather}
    if item.name in _NAMED:
        convert = parsed(_NAMED[item.name], item.name)
        return {"type": convert, "metavar": metavar, **_OPTIONAL.get(item.name, {})}
    if kind in ("int", "float"):
        return {"type": number(int if kind == "int" else float, meta["range"]), "metavar": metavar or "N"}
    if meta["choices"] and kind == "str":
        return {"choices": meta["choices"], "metavar": metavar}
    if meta["choices"]:
        return {"type": _names(meta["choices"]), "metavar": metavar or "TYPE[,TYPE]"}
    if meta["parse"] is not None:
        return {"type": parsed(meta["parse"], item.name), "metavar": metavar}
    return {
        "type": Path if kind == "Path" else str,
        "metavar": metavar or ("FILE" if kind == "Path" else "TEXT"),
    }


def _type(item: Field[Any]) -> str:
    """Return the name of the first type that a field may have."""
    return str(item.type).removeprefix("InitVar[").removesuffix("]").split(" | ")[0]


def _help(item: Field[Any]) -> str:
    return help_of(item).replace("%", "%%")


def read_config(
    options: argparse.Namespace, target: Path, draft: Path | None, **defaults: Any
) -> EngineConfig:
    """Return the configuration that the options ask for. `defaults` fills in sampling options not given."""
    given = vars(options)

    def named(config: Config) -> dict[str, Any]:
        return {item.name: given[item.name] for item in option_fields(config) if item.name in given}

    sampling = SamplingConfig(**{**defaults, **named(SamplingConfig)})
    models: dict[str, Any] = {"target": target, "draft": draft, "sampling": sampling}
    keeps = "the split stays for --record" if given.get("record") else given.get("keeps_split", "")
    models["keeps_split"] = keeps
    return EngineConfig(**{**named(EngineConfig), **models})


NAMED = "OWNER/REPO[:QUANT]"
_name = parsed(Name.parse)


def add_hub(parser: argparse.ArgumentParser) -> None:
    """Add the options of models by name."""
    group = parser.add_argument_group("models by name, downloaded once (pip install 'spac[hf]')")
    group.add_argument(
        "--hf-repo", "-hf", "-hfr", metavar=NAMED, type=_name,
        help="the model, in place of --target, or a short name such as gpt-oss-20b (default of QUANT: "
        "Q4_K_M, else Q8_0, else the first file)",
    )  # fmt: skip
    group.add_argument("--hf-file", "-hff", metavar="FILE", help="the model's file in --hf-repo, in place "
                       "of QUANT; the first one of a split model")  # fmt: skip
    group.add_argument("--hf-repo-draft", "-hfd", "-hfrd", "--spec-draft-hf", metavar=NAMED, type=_name,
                       help="the draft model, in place of --draft")  # fmt: skip
    group.add_argument("--hf-token", "-hft", metavar="TOKEN", help="your token for private repositories; "
                       "better given as HF_TOKEN in the environment: others can read options")  # fmt: skip
    group.add_argument("--offline", action="store_true", help="take models from the cache, and download "
                       "nothing")  # fmt: skip


def target_of(options: argparse.Namespace) -> Path | None:
    """Return the target's file, which is downloaded if it is given by name; None if none is given."""
    if options.hf_file and options.hf_repo is None:
        raise InputError("--hf-file is a file of a repository: add --hf-repo OWNER/REPO")
    return _file(options, "target", options.hf_repo, options.hf_file or "")


def draft_of(options: argparse.Namespace) -> Path | None:
    """Return the draft's file, which is downloaded if it is given by name; None if none is given."""
    return _file(options, "draft", options.hf_repo_draft)


def _file(options: argparse.Namespace, role: str, name: Name | None, file: str = "") -> Path | None:
    path: Path | None = getattr(options, role, None)
    if name is None and path is not None and not path.exists():
        if short := known.hub_name(str(path)):
            path, name = None, Name.parse(short)
        elif path.suffix != ".gguf" and (close := known.near(str(path))):
            raise InputError(f"{path}: there is no such file or short name; did you mean {close}?")
    if name is None:
        return path
    if path is not None:
        raise InputError(f"--{role} and a {role} by name both say which model runs: give one of them")
    return fetch(name, file, Access(options.hf_token or "", options.offline, options.quiet))
