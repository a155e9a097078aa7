"""Print an id of ggml-cuda's sources, as patched and as published. Objects fit trees with the same id.

python cuda_source_id.py PATCHED PRISTINE
"""

import hashlib
import sys
from pathlib import Path

INSIDE = ("ggml/src/ggml-cuda", "ggml/include", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h")
KINDS = (".cu", ".cuh", ".h")


def source_id(*trees: Path) -> str:
    """Return the sha256 (hexadecimal) of the names and contents of the files that the objects are made of."""
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
