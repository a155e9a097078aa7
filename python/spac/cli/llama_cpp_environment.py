"""The variables of llama-server, LLAMA_ARG_… and LLAMA_API_KEY, as options of `spac serve`.

A server that is moved from llama-server keeps its settings, and one that was closed by a key stays closed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

PREFIX = "LLAMA_ARG_"
API_KEY, OWN_KEY = "LLAMA_API_KEY", "SPAC_API_KEY"
_FLAGS = {
    API_KEY: "--api-key",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT": "--checkpoint-min-step",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_FIT_ESTIMATE": "--fit-print",
    "LLAMA_ARG_STATIC_PATH": "--path",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K": "--cache-type-k-draft",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V": "--cache-type-v-draft",
}
"""The options of variables that have another name. Every other one is that of its option."""
_ON, _OFF = ("1", "true", "on", "enabled"), ("0", "false", "off", "disabled")


def options_of(
    environment: Mapping[str, str], known: Mapping[str, argparse.Action], foreign: Mapping[str, int]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each variable's name and the words that stand for it on a command line, none for no option.

    known: the program's options by name. foreign: the numbers of values of llama.cpp's further options.
    """
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) or (name == API_KEY and not environment.get(OWN_KEY)):
            yield name, _words(name, value, known, foreign)


def _words(
    name: str, value: str, known: Mapping[str, argparse.Action], foreign: Mapping[str, int]
) -> list[str]:
    flag = _FLAGS.get(name) or "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
    if flag.startswith("--no-"):  # llama.cpp heeds the name alone
        return [flag] if flag in known or flag in foreign else []
    switches = flag == "--slots" or (
        known[flag].nargs == 0 if flag in known else foreign.get(flag) == 0 if flag in foreign else False
    )
    if switches:
        on = value.lower() in _ON
        if not on and value.lower() not in _OFF:
            return []
        flag = flag if on else f"--no-{flag.removeprefix('--')}"
        return [flag] if flag in known or flag in foreign else []
    if flag in known:
        return [f"{flag}={value}"]
    return [flag, value] if flag in foreign else []
