"""Make a low-bit copy of a model to be its draft, as llama-quantize does. The scheduler moe-speq needs it.

python -m tools.self_draft MODEL.gguf COPY.gguf [Q4_0]
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path

import spac.model.c_api

# isort: split
import llama_cpp.llama_cpp as api

_PREFIX = "LLAMA_FTYPE_MOSTLY_"
KINDS = tuple(name.removeprefix(_PREFIX) for name in dir(api) if name.startswith(_PREFIX))


def quantize(source: Path, path: Path, kind: str = "Q4_0") -> Path:
    """Write `source` of any type at `path`, quantized to `kind` or as "F32". Raise OSError if that fails."""
    params = api.llama_model_quantize_default_params()
    params.ftype = api.LLAMA_FTYPE_ALL_F32 if kind == "F32" else getattr(api, _PREFIX + kind)
    params.allow_requantize = True
    params.nthread = 0
    if api.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)):
        raise OSError(
            f"{source} could not be quantized: {spac.model.c_api.last_error() or 'no reason given'}"
        )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantize a copy of a model, to be its draft.")
    parser.add_argument("model", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("kind", nargs="?", default="Q4_0", choices=KINDS, metavar="KIND")
    given = parser.parse_args()
    try:
        quantize(given.model, given.copy, given.kind)
    except OSError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
