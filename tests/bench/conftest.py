"""Fixture for all tests of this folder: one tiny twin with its draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.twin.__main__ import arguments

AGREEMENT = 0.7


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (target, draft), as the program writes them. The draft knows `AGREEMENT` of the chain."""
    folder = tmp_path_factory.mktemp("twin")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    args = arguments().parse_args(["tiny", str(target), "--draft", str(draft), "--agreement", str(AGREEMENT)])
    args.run(args)
    return target, draft
