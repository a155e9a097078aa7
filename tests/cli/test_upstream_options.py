"""Every option of llama.cpp's own programs at the pin has a meaning here, or is refused with advice.

It takes as many values as in llama.cpp.
"""

from __future__ import annotations

import re

import pytest

from spac.cli.llama_cpp_options import foreign_options
from tests.cli.options_page import parser_of
from tools.patches.source import published, sdist

EXAMPLES = {"run": "COMPLETION", "chat": "CLI", "serve": "SERVER"}
"""llama.cpp's programs that correspond to spac's."""
ELSEWHERE = {
    "--completion-bash",  # it prints a script
    "--server-base",  # it is an option of a client
    "--tts-lang", "--tts-speaker-file",
}  # fmt: skip
CHAT = {"--chat-template", "--reasoning", "--skip-chat-parsing"}
"""Beginnings of the chat's options. `spac.chat.arguments` has those that are known."""
MAY_BE_LEFT_OUT = {"-fa", "--flash-attn"}
"""Options whose value may be left out, because they had none once."""
OTHERWISE = {
    "--draft",  # it takes a file here
    "--help", "-h",  # they may take a group here
    "--slots",  # it takes a number here
}  # fmt: skip


def options(program):
    """Return (names, number of values) of llama.cpp's options, from its source."""
    text = published("common/arg.cpp")["common/arg.cpp"]
    found = []
    for block in re.split(r"add_opt\(common_arg\(", text)[1:]:
        head, _, rest = block.partition("[](")
        names = re.match(r"\s*(?://[^\n]*\n\s*)*\{([^}]*)\}\s*,\s*(?:\{([^}]*)\})?", head)
        assert names is not None, block[:80]
        flags = re.findall(r'"(-[^"]*)"', names[1] + (names[2] or ""))
        examples = re.search(r"set_examples\(\{([^}]*)\}|set_examples\((\w+)\)", rest)
        where = (examples[1] or "COMMON") if examples else "COMMON"
        if "COMMON" in where or f"LLAMA_EXAMPLE_{EXAMPLES[program]}" in where:
            parameters = rest.split(")", 1)[0].split(",")[1:]
            found.append((flags, sum("string" in each or "int" in each for each in parameters)))
    assert len(found) > 100
    return found


@pytest.mark.skipif(sdist() is None, reason="the sdist of the pin is not in the cache")
@pytest.mark.parametrize("program", EXAMPLES)
def test_every_option_is_known(program):
    own = parser_of(program)._option_string_actions
    table = foreign_options(program)
    unknown, wrong = [], []
    for flags, n_values in options(program):
        if flags[0] in ELSEWHERE or any(flag.startswith(tuple(CHAT)) for flag in flags):
            continue
        for flag in flags:
            if flag in OTHERWISE:
                continue
            if flag in own:
                n_ours = 0 if own[flag].nargs == 0 else 1
            elif flag in table:
                n_ours = table[flag].n_values or int(bool(table[flag].maybe))
            else:
                unknown.append(flag)
                continue
            if n_ours != n_values:
                wrong.append((flag, n_ours, n_values))
    assert unknown == []
    assert wrong == []
