"""The `spac` command, which starts every program. A program is imported only when it starts."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import signal
import sys
from collections.abc import Sequence

from spac import __version__
from spac.cli import interrupt
from spac.errors import one_line

COMMANDS = {
    "setup": "find a model for this machine, download it and talk with it",
    "run": "generate text from a prompt",
    "chat": "talk with a model in the terminal",
    "serve": "an OpenAI-compatible server",
    "rpc-server": "lend this machine's devices to spac on another one",
    "exec": "run a Python program whose llama_cpp is spac's",
    "bench": "measure speed, schedulers and settings",
    "report": "a run's figures as one HTML page",
    "models": "what was downloaded by name, and what of it would fit here",
    "doctor": "what was found on this machine, and what is off and why",
    "completion": "a script with which your shell completes commands and options",
}
"""The commands and their purposes. Each is a module with `main(arguments) -> exit code` (`module_of`)."""
_PLACES = {"setup": "spac.models.setup", "completion": "spac.cli.completion"}
"""The modules of commands that share a room with another one."""

ELSEWHERE = {
    "pull": "`spac run -hf NAME` downloads a model when it first needs it",
    "list": "`spac models` lists what was downloaded",
    "ls": "`spac models` lists what was downloaded",
    "ps": "a model is loaded as long as its program runs; `spac models` lists what was downloaded",
    "rm": "models lie in the cache of Hugging Face's tools: `hf cache rm` removes them",
    "show": "`spac doctor --target NAME` tells what of a model would fit here",
    "stop": "Ctrl-C ends a program, and frees its model",
    "create": "options set what a Modelfile does: `spac chat --system TEXT --temp 0.7 NAME`",
    "launch": "`spac serve NAME` has the interfaces that coding agents speak",
    "cli": "`spac chat NAME` talks with a model, `spac run NAME --prompt TEXT` continues a text",
    "server": "`spac serve NAME` is the server",
}
"""Words of Ollama and llama.cpp that are no commands here, and the way to what they do."""


def usage() -> str:
    """Return the help of the `spac` command itself."""
    lines = [
        "usage: spac COMMAND [OPTIONS]",
        "",
        "Mixture-of-Experts models split between the GPU and the CPU, with",
        "speculative decoding.",
        "",
        *(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items()),
        "",
        "`spac COMMAND --help` lists a command's options that matter most and the groups",
        "of the others. `spac --version` tells the version.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `spac COMMAND …`, and return the command's exit code, or 2 if there is no such command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    if name == "help" and len(given) > 1:
        return main([given[1], "--help", *given[2:]])
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"spac {__version__}")
        return 0
    if name not in COMMANDS:
        return _refuse(name)
    if importlib.util.find_spec(module_of(name)) is None:
        return _fail(f"spac: error: this installation has no command '{name}'")
    module = importlib.import_module(module_of(name))
    return int(module.main(given[1:]))


def module_of(name: str) -> str:
    """Return the module of a command. Without another place it is spac.<name>, with _ for -."""
    return _PLACES.get(name, f"spac.{name.replace('-', '_')}")


def _refuse(name: str) -> int:
    if not name:
        return _fail(usage())
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    if name in ELSEWHERE:
        hint = ELSEWHERE[name]
    elif name.startswith("-"):
        hint = "options follow the command, as in `spac run --help`"
    else:
        hint = f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(COMMANDS)}"
    return _fail(f"spac: error: '{one_line(name)}' is no command; {hint}")


def _fail(text: str) -> int:
    from spac.cli.program import BAD_INPUT, say

    say(text)
    return BAD_INPUT


def entry(*arguments: str) -> int:
    """Run the console script `spac`, or with `arguments` one of its commands, and return the exit code.

    This module imports little, so that Ctrl-C is handled soon.
    """
    words = [*arguments, *sys.argv[1:]]
    if words[:1] != ["exec"] or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        interrupt.leave_at_once()  # A program that `exec` starts inherits a signal that is ignored.
    return main(words)
