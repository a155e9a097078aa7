"""``python -m tests.together.forking CASE MODEL``: forks while an engine is loaded, with its threads at work.

The program prints the child's output, one line each, then the parent's verdict. The child ends as CASE says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import SpacError

PROMPT = "def fibonacci(n):"


def load(path: str) -> Engine:
    return Engine(
        EngineConfig(
            target=path, device="simulated", threads=2, ctx=256, slots=0.5, sampling=SamplingConfig(temp=0)
        )
    )


def text_of(engine: Engine) -> str:
    return "".join(engine.generate(PROMPT, 12))


def attempts(engine: Engine) -> dict[str, Callable[[], object]]:
    """Return calls that use objects that the parent has loaded, by name."""
    loop, experts = engine.loop, engine.experts
    shape = (3, 5)
    return {
        "generate": lambda: text_of(engine), "tokenize": lambda: engine.tokenize("a"),
        "begin": lambda: loop.begin("props", b"", {}), "forget": engine.forget,
        "on": lambda: loop.on("draft_end", None), "attach_slots": lambda: experts.attach_slots(3),
        "submit": lambda: experts.submit(np.zeros(shape, np.int32), np.zeros(3, np.int32)),
        "settle": lambda: experts.settle(60), "residency": experts.residency,
        "stats": lambda: experts.stats, "layers": lambda: experts.layers,
        "set_counting": lambda: experts.set_counting(True), "take_demand": experts.take_demand,
    }  # fmt: skip


def use(engine: Engine, _path: str) -> None:
    """Make every call and print its refusal. The child can end all the same."""
    for name, attempt in attempts(engine).items():
        try:
            attempt()
        except SpacError as error:
            print(f"{name}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: done")
    sys.exit(0)  # `with Engine` closes the engine on the way


def leave(_engine: Engine, _path: str) -> None:
    """Leave by the interpreter's own way, with the engine still in memory."""
    sys.exit(0)


def execute(_engine: Engine, _path: str) -> None:
    """Replace the process by another program."""
    os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])


def anew(_engine: Engine, path: str) -> None:
    """Use an engine of the child's own."""
    with load(path) as engine:
        print(text_of(engine))
    sys.exit(0)


def main(case: str, path: str) -> int:
    child = {"use": use, "leave": leave, "execute": execute, "anew": anew}[case]
    with load(path) as engine:
        expected = text_of(engine)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child(engine, path)
        _, status = os.waitpid(pid, 0)
        same = text_of(engine) == expected
        print(f"exit code {os.waitstatus_to_exitcode(status)}, {'same text' if same else 'other text'}")
        print(repr(expected))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
