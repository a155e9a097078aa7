"""``python -m tests.model.gguf.loader < PATHS``: loads every file with spac's library, decodes a few tokens.

Each file is loaded in its own process, which is forked before the library has started anything. The program
prints one line for each file: "ok", "refused" (the library returned an error), or "signal N".
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from spac import _core

SECONDS = 30


def load(path: str) -> str:
    """Return the library's outcome for a file. If the library ends the process, this does not return."""
    ll = importlib.import_module("llama_cpp")
    _core.set_default_device("simulated")
    ll.llama_backend_init()
    with _core.LoadScope():
        params = ll.llama_model_default_params()
        params.n_gpu_layers = -1
        model = ll.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            return "refused"
        settings = ll.llama_context_default_params()
        settings.n_ctx = 64
        settings.n_threads = settings.n_threads_batch = 1
        context = ll.llama_init_from_model(model, settings)
        if not context:
            return "refused"
        tokens = (ll.llama_token * 3)(1, 2, 3)
        return "ok" if ll.llama_decode(context, ll.llama_batch_get_one(tokens, 3)) == 0 else "refused"


def main() -> None:
    """Answer every line of stdin."""
    for line in sys.stdin:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.write(write_end, load(line.rstrip("\n")).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            text = answer.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"signal {-code}" if code < 0 else text or f"exit code {code}", flush=True)


if __name__ == "__main__":
    main()
