"""Call `spac.run.main` for every line of stdin, a JSON list of arguments: ``python -m tests.fuzz.worker``.

The answer to each is a line of JSON: {"code": …, "out": …, "err": …}. The first line is {"ready": true}. If
the process ends or hangs instead of answering, the driver reports it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import threading
import traceback
from typing import IO, Any

from spac.run import main


def call(arguments: list[str]) -> int:
    """Return the exit code. An exception that reaches this function is 1, with its traceback on stderr."""
    try:
        return main(arguments)
    except SystemExit as end:  # raised by argparse
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _drain(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode(errors="replace")
    file.seek(0)
    file.truncate()
    return text


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer all questions. Streams 1 and 2 are files, because the library writes there too. Stream 0 is
    empty."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)

        def answer(message: dict[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        answer({"ready": True})
        for line in questions:
            code = call(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("spac")]
            answer({"code": code, "out": _drain(out), "err": _drain(err), "threads": threads})


if __name__ == "__main__":
    faulthandler.enable(file=os.fdopen(os.dup(2), "w"))  # a crash prints its place to the driver's stderr
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(questions, answers)
