"""Packs what the build reads of llama.cpp into an archive, for a machine without a network.

python -m bench.gpu_suite.pack llama.cpp.tar.gz
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from tests.patches import source  # noqa: E402


def main() -> None:
    sdist = source.sdist()
    if sdist is None or len(sys.argv) != 2:
        sys.exit(
            "usage: python -m bench.gpu_suite.pack FILE.tar.gz, after a build has fetched llama.cpp's sdist"
        )
    with tarfile.open(sys.argv[1], "w:gz", compresslevel=9) as archive:
        for name, content in source.llama_source.files_of_sdist(sdist):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
