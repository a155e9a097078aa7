"""Ask llama.cpp's loader which tensors a model file needs, by name and shape, given the metadata alone.

The loader can make a model without a file, and somebody else fills its tensors. So the loader itself lists an
architecture's tensors, and no list here can be outdated. It runs in a process of its own, because it aborts
where metadata lacks something.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Shapes = dict[str, tuple[int, ...]]
"""Shapes by full name ("blk.0.attn_q.weight"), rows last as numpy has them."""


def shapes_of(files: Sequence[Path]) -> list[Shapes]:
    """Return the tensors that the loader needs beside each of these files of metadata, optional ones
    included.

    Raise RuntimeError with the end of the library's log when it refuses a file: the last one named there.
    """
    command = [sys.executable, "-m", "tools.models.loader", *map(str, files)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("LLAMA_CPP_LIB_PATH", None)  # set if spac is loaded already
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True, timeout=120
        )
        if done.returncode != 0:
            log.seek(0)
            raise RuntimeError(f"the loader ended with {done.returncode}:\n{log.read()[-2000:]}")
    return [
        {name: tuple(shape) for name, shape in json.loads(line).items()} for line in done.stdout.splitlines()
    ]


class _Tensor(ctypes.Structure):
    """The first fields of ggml_tensor."""

    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4)]


def _ask(ll: Any, path: str) -> Shapes:
    library = ll.llama_cpp._lib
    library.ggml_get_name.restype = ctypes.c_char_p
    library.gguf_init_from_file.restype = ctypes.c_void_p

    class Options(ctypes.Structure):
        _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]

    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, Options]
    shapes: Shapes = {}

    @ll.llama_cpp.llama_model_set_tensor_data_t  # type: ignore[untyped-decorator]
    def note(tensor: int, _user: object) -> None:
        ne = list(_Tensor.from_address(tensor).ne)
        while len(ne) > 1 and ne[-1] == 1:
            ne.pop()
        shapes[library.ggml_get_name(ctypes.c_void_p(tensor)).decode()] = tuple(reversed(ne))

    metadata = library.gguf_init_from_file(path.encode(), Options(True, None))
    params = ll.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mtp = True
    model = ll.llama_cpp.llama_model_init_from_user(metadata, note, None, params)
    if not model:
        raise RuntimeError(f"{path} is refused")
    ll.llama_model_free(model)
    return shapes


def main(paths: Sequence[str]) -> int:
    """Print the shapes for every file, as a line of JSON each."""
    import spac  # noqa: F401 - chooses the library

    # isort: split
    import llama_cpp as ll

    print(f"asking {ll.llama_cpp._lib._name}", file=sys.stderr)
    for path in paths:
        print(f"{path}", file=sys.stderr, flush=True)
        print(json.dumps(_ask(ll, path)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
