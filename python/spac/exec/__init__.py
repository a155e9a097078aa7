"""Replacement of this process by another Python program, in which an import of llama_cpp enables spac."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from spac import env
from spac._library import find_llama_cpp
from spac.cli.options import add_engine
from spac.cli.parser import Parser
from spac.cli.program import in_options
from spac.config import EngineConfig, GraphTokens, Slots, StreamBatch, VramLimit
from spac.config.values import Adapter, GpuLayers
from spac.errors import InputError
from spac.llama_cpp_python.names import OPTIONS
from spac.model.gguf.check import check_model
from spac.scheduler.choice import SchedulerChoice

START = Path(__file__).parent / "start"
"""The folder with the code that runs when a process starts."""
_INTERPRETER = re.compile(rb"#!(?:/bin/sh\n'''exec' )?\s*\"?([^\s\"]*/(?:python|pypy)[\w.]*)")
"""The path of the interpreter, at the beginning of a script. pip writes two lines if the path is long."""
_PYTHON = re.compile(r"python[\d.]*")
_ENV = re.compile(rb"#!\s*\S*/env\s.*\bpython")


def make_parser() -> Parser:
    """Return the parser with the options of `spac exec`."""
    parser = Parser(
        prog="spac exec",
        description="Run a Python program, its processes too, with the llama_cpp of spac: models that have "
        "experts are split. The program is a file, a command of this environment, or -m and a module, and "
        "`python` may stand before it. Everything after its name belongs to it. Options apply to models "
        "whose call does not give them.",
    )
    parser.usage = "%(prog)s [OPTIONS] (FILE | COMMAND | -m MODULE) [ARGUMENTS]"
    add_engine(parser, OPTIONS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Replace this process by the program's. Return an exit code only if there is no such program."""
    parser = make_parser()
    own, program = parser.split(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(own)
    try:
        find_llama_cpp()
        environment = environment_of(vars(options))
        command = [sys.executable, *_resolved(program)]
        sys.stdout.flush()
        os.execve(sys.executable, command, environment)
    except ImportError as error:
        parser.error(str(error))
    except InputError as error:
        parser.error(in_options(parser, str(error)))
    except OSError as error:  # such as arguments that are too long
        parser.error(f"{sys.executable} cannot be started: {error.strerror}")


def environment_of(options: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a process that enables spac with these options. Raise InputError."""
    config = EngineConfig(target="any", **options)
    if config.draft is not None:
        check_model(config.draft, "draft")
    folders = [str(START), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        env.EXEC.name: json.dumps(options, default=_plain),
    }


def _plain(value: Any) -> Any:
    """Return a value of an option in a form that JSON has and `enable` reads. Paths become absolute."""
    match value:
        case Path():
            return str(value.absolute())
        case Adapter():
            return [value.path, value.scale]
        case Slots() | VramLimit() | StreamBatch() | GraphTokens():
            return next((each for each in astuple(value) if each is not None), "auto")
        case GpuLayers() | SchedulerChoice():
            return str(value)
    raise TypeError(f"{value!r} has no form in JSON")


def _resolved(program: list[str]) -> list[str]:
    """Return the arguments with which Python runs the program. Raise InputError if there is none.

    A `python` in front is left out, with its options behind it as they are.
    """
    if program and _is_python(program[0]):
        program = program[1:]
        if not program or (program[0].startswith("-") and program[0] != "-m"):
            return program
    name = program[0] if program else ""
    if not name:
        raise InputError("no program: name a file, a command, or -m MODULE")
    if name == "-m":
        if len(program) == 1:
            raise InputError("-m: the name of a module is missing")
        return program
    if os.path.isfile(os.path.join(name, "__main__.py")) or (
        os.path.exists(name) and not os.path.isdir(name)
    ):
        if _is_binary(name):
            raise InputError(f"{name} is no Python script")
        return program
    # A virtual environment need not be activated.
    folders = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise InputError(f"there is no program '{name}': name a file, a command, or -m MODULE")
    _check_script(found)
    return [found, *program[1:]]


def _is_python(name: str) -> bool:
    """Return True for the word python, and for the path of this environment's interpreter."""
    folder, base = os.path.split(name)
    here = not folder or os.path.realpath(folder) == os.path.realpath(os.path.dirname(sys.executable))
    return here and _PYTHON.fullmatch(base) is not None


def _is_binary(path: str) -> bool:
    if not os.path.isfile(path):  # a pipe's bytes belong to the program
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _check_script(path: str) -> None:
    """Raise InputError unless the file is a script of this Python environment."""
    with open(path, "rb") as file:
        head = file.read(1024)
    if _ENV.match(head):
        return
    interpreter = _INTERPRETER.match(head)
    if interpreter is None:
        raise InputError(f"{path} is no Python script")
    other = os.fsdecode(interpreter[1])
    folder = os.path.dirname(other)
    if not (os.path.isdir(folder) and os.path.samefile(folder, os.path.dirname(sys.executable))):
        raise InputError(f"{path} belongs to another Python, {other}: install it where spac is installed")
