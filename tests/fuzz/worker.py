"""``python -m tests.fuzz.worker``: calls `spac.run.main` for every line of stdin, a JSON list of arguments.

Answers each with a line of JSON: {"code": …, "out": …, "err": …}. The first line is {"ready": true}. A
process that ends or hangs instead of answering is the driver's finding.
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
    """The exit code; what nobody caught counts as 1, with its traceback on stderr."""
    try:
        return main(arguments)
    except SystemExit as end:  # argparse's way out
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
    """Streams 1 and 2 go to files, below Python, for the library writes there too; stream 0 is empty."""
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
    faulthandler.enable(file=os.fdopen(os.dup(2), "w"))  # a crash shows where, on the driver's stderr
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(questions, answers)
