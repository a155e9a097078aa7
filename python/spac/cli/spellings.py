"""Further options of llama.cpp that set a field of the configuration in another way."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spac.config.context import CONTEXT_GROUP
from spac.config.fields import Range
from spac.config.sampling import sampler_sequence
from spac.config.values import Adapter


@dataclass(frozen=True)
class Spelling:
    """Options that set `field` in another way.

    `change` makes the field's value from the option's text. For an option without `metavar`, it makes the
    value from the field's value so far, which is None if none was given.
    """

    field: str
    flags: tuple[str, ...]
    help: str
    change: Callable[[Any], Any]
    metavar: str | None = None
    group: str = ""


def _locked(mode: str | None) -> str:
    return "mlock" if mode in ("none", "mlock") else "mmap+mlock"


def _mapped(mode: str | None) -> str:
    return "mmap+mlock" if mode in ("mlock", "mmap+mlock") else "mmap"


def _read(mode: str | None) -> str:
    return "mlock" if mode in ("mlock", "mmap+mlock") else "none"


def _inverse(text: str) -> float:
    limits = Range(1e-6, 10**6)
    try:
        if (factor := float(text)) in limits:
            return 1 / factor
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a number, {limits}, not '{text}'")


SPELLINGS = (
    Spelling("load_mode", ("--mmap",), "as --load-mode mmap", _mapped, group=CONTEXT_GROUP),
    Spelling("load_mode", ("--no-mmap",), "as --load-mode none", _read, group=CONTEXT_GROUP),
    Spelling(
        "load_mode", ("--mlock",), "keep what is loaded from being swapped out", _locked, group=CONTEXT_GROUP
    ),
    Spelling(
        "rope_freq_scale", ("--rope-scale",), "as --rope-freq-scale 1/N", _inverse, "N", CONTEXT_GROUP
    ),
    Spelling(
        "lora", ("--lora-scaled",), "a LoRA adapter with the factor that it is applied with",
        Adapter.parse_scaled, "FILE:SCALE[,…]", CONTEXT_GROUP,
    ),
    Spelling(
        "samplers", ("--sampler-seq", "--sampling-seq"), "--samplers by their letters: edskypmxt",
        sampler_sequence, "LETTERS",
    ),
)  # fmt: skip


class Change(argparse.Action):
    """The argparse action of a spelling without a value. It changes the field's value so far."""

    def __init__(self, *, change: Callable[[Any], Any], **keywords: Any) -> None:
        super().__init__(nargs=0, **keywords)
        self._change = change

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        """Change the field's value so far."""
        setattr(namespace, self.dest, self._change(getattr(namespace, self.dest, None)))


class Gather(argparse.Action):
    """The argparse action of options that may be given several times. It joins their tuples or mappings."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        """Join the values to those given so far."""
        before = getattr(namespace, self.dest, None)
        if before is not None:
            values = {**before, **values} if isinstance(values, dict) else (*before, *values)
        setattr(namespace, self.dest, values)
