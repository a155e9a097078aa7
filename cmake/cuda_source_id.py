"""Prints what tells ggml-cuda's sources apart, as patched and as published: objects fit trees of equal id.

python cuda_source_id.py PATCHED PRISTINE
"""

import hashlib
import sys
from pathlib import Path

INSIDE = ("ggml/src/ggml-cuda", "ggml/include", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h")
KINDS = (".cu", ".cuh", ".h")


def source_id(*trees: Path) -> str:
    """sha256, hexadecimal, over names and contents of what the objects are compiled from."""
    digest = hashlib.sha256()
    for tree in trees:
        for inside in INSIDE:
            top = tree / inside
            for path in [top] if top.is_file() else sorted(top.rglob("*")):
                if path.suffix in KINDS:
                    digest.update(f"{path.relative_to(tree)}\0{path.stat().st_size}\0".encode())
                    digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(source_id(*map(Path, sys.argv[1:])))
