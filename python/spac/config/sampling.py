"""The options of sampling, with llama.cpp's names and defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

from spac.config.fields import COUNT, LOOK_BACK, PROBABILITY, Checked, Range, documented, option
from spac.config.grammar import of_file, of_schema, of_schema_file
from spac.errors import InputError

SAMPLERS = {
    "penalties": "e", "dry": "d", "top_n_sigma": "s", "top_k": "k", "typ_p": "y", "top_p": "p", "min_p": "m",
    "xtc": "x", "temperature": "t",
}  # fmt: skip
"""llama.cpp's samplers in its order, each with its letter in --sampler-seq."""
_SAMPLER_NAMES = {
    **{name.replace("_", ""): name for name in SAMPLERS},
    "temp": "temperature", "typ": "typ_p", "typicalp": "typ_p", "nucleus": "top_p",
}  # fmt: skip


@documented
@dataclass(frozen=True)
class SamplingConfig(Checked):
    """The options that choose the next token, with llama.cpp's samplers, names and defaults.

    `temp=0` is greedy.
    """

    seed: int | None = option(
        None, "seed of the sampler; -1 is a random one, which is reported (default: -1)", "--seed", "-s",
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
    samplers: Sequence[str] | None = option(
        None, f"the samplers and their order, by name, separated by ;: {';'.join(SAMPLERS)} (default: these)",
        "--samplers", metavar="NAME[;…]",
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        dict, "make a token likelier, or less likely: 15043+1, 15043-1; may be given several times",
        "--logit-bias", "-l", metavar="TOKEN(+/-)BIAS",
    )  # fmt: skip
    ignore_eos: bool = option(False, "never choose an end token", "--ignore-eos")
    grammar: str = option("", "GBNF grammar that the text must follow", "--grammar")
    grammar_file: InitVar[Path | str | None] = option(None, "the same, from a file", "--grammar-file")
    json_schema: InitVar[str | Mapping[str, Any] | None] = option(
        None, "JSON schema that the text must follow; {} is any JSON", "--json-schema", "-j", metavar="SCHEMA"
    )
    json_schema_file: InitVar[Path | str | None] = option(
        None, "the same, from a file", "--json-schema-file", "-jf"
    )
    """A grammar file, a JSON schema, or a schema file sets `grammar`."""

    def __post_init__(
        self,
        grammar_file: Path | str | None,
        json_schema: str | Mapping[str, Any] | None,
        json_schema_file: Path | str | None,
    ) -> None:
        ways: dict[str, tuple[Any, Callable[[Any], str]]] = {
            "grammar": (self.grammar or None, str),
            "grammar_file": (grammar_file, of_file),
            "json_schema": (json_schema, of_schema),
            "json_schema_file": (json_schema_file, of_schema_file),
        }
        names = [name for name, (value, _) in ways.items() if value is not None]
        if len(names) > 1:
            raise InputError(f"{names[0]} and {names[1]} both say what the text must follow: give one")
        for value, made in map(ways.__getitem__, names):
            object.__setattr__(self, "grammar", made(value))
        if self.samplers is not None:
            object.__setattr__(self, "samplers", sampler_names(self.samplers))
        object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))
        super().__post_init__()


def sampler_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return llama.cpp's own names of samplers, from the names and aliases that it accepts.

    Raises InputError for an unknown name.
    """
    found = []
    for name in names.split(";") if isinstance(names, str) else names:
        plain = re.sub("[-_ ]", "", str(name)).lower()
        known = _SAMPLER_NAMES.get(plain)
        if known is None:
            raise InputError(f"samplers: '{name}' is not one of {', '.join(SAMPLERS)}")
        found.append(known)
    return tuple(found)


def sampler_sequence(letters: str) -> tuple[str, ...]:
    """Return the samplers that --sampler-seq names by their letters. Raises InputError."""
    known = {letter: name for name, letter in SAMPLERS.items()}
    for letter in letters:
        if letter not in known:
            listed = ", ".join(f"{letter} {name}" for letter, name in known.items())
            raise InputError(f"samplers: '{letter}' is not one of {listed}")
    return tuple(known[letter] for letter in letters)


def parse_bias(text: str) -> dict[int, float]:
    """Return the bias of a token from a text TOKEN+BIAS or TOKEN-BIAS. Raises InputError."""
    match = re.fullmatch(r"\s*(\d+)([+-])(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|inf)", text, re.ASCII)
    if match is None:
        raise InputError(f"logit_bias: '{text}' is not a token's number, + or -, and the bias, as in 15043+1")
    return checked_bias({int(match[1]): float(match[2] + match[3])})


def checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    """Return the biases as a dictionary. Raises InputError for an invalid token or bias."""
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise InputError(f"logit_bias: {token!r} is not the number of a token")
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise InputError(f"logit_bias: the bias of token {token} must be a number, not {value!r}")
        if value > 1e6:
            raise InputError(f"logit_bias: the bias of token {token} is {value}, more than 1000000")
    return dict(bias)
