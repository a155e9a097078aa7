"""Print an id of the CUDA sources: ggml-cuda's, as patched and as published, and spac's own. Objects fit
trees with the same id.

python cuda_source_id.py PATCHED PRISTINE
"""

import hashlib
import re
import sys
from pathlib import Path

INSIDE = ("ggml/src/ggml-cuda", "ggml/include", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h")
KINDS = (".cu", ".cuh", ".h")
OWN = Path(__file__).resolve().parents[1] / "csrc"


def own_sources() -> list[Path]:
    """Return spac's own CUDA files, and the headers of spac's that they include."""
    found: list[Path] = []
    left = sorted(OWN.rglob("*.cu"))
    while left:
        found.append(left.pop())
        names = re.findall(r'^#include "(.+)"', found[-1].read_text(), re.MULTILINE)
        included = {OWN / name for name in names if (OWN / name).is_file()}
        left += sorted(included.difference(found, left))
    return sorted(found)


def source_id(*trees: Path) -> str:
    """Return the sha256 (hexadecimal) of the names and contents of the files that the objects are made of."""
    digest = hashlib.sha256()

    def add(path: Path, top: Path) -> None:
        digest.update(f"{path.relative_to(top)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())

    for tree in trees:
        for inside in INSIDE:
            top = tree / inside
            for path in [top] if top.is_file() else sorted(top.rglob("*")):
                if path.suffix in KINDS:
                    add(path, tree)
    for path in own_sources():
        add(path, OWN)
    return digest.hexdigest()


if __name__ == "__main__":
    print(source_id(*map(Path, sys.argv[1:])))
